// Tokens as labels, and tokens joined to words.

// What is written from right to left: the blocks that Unicode keeps for it.
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/**
 * What a piece is called: "·" begins what continues a word; a letter's parts are counted. Text from
 * right to left is isolated: the dot, and the numbers behind it, would stand on its other side.
 */
export function label(piece) {
  const text = RIGHT_TO_LEFT.test(piece.text) ? `\u2068${piece.text}\u2069` : piece.text;
  const counted = piece.parts > 1 ? `${text} ${piece.part}/${piece.parts}` : text;
  return piece.continues ? `·${counted}` : counted;
}

/** Whether a piece is some of the bytes of a letter, and not the first. */
function isInLetter(piece) {
  return piece.parts > 1 && piece.part > 1;
}

/** Whether some letters are cut into several pieces. */
export function hasCutLetters(pieces) {
  return pieces.some(isInLetter);
}

/**
 * Groups of places: pieces that make a letter, or a word, are one if `letters` or `words`. Without
 * special tokens, if these are to be hidden.
 */
export function groups(pieces, { letters, words, special }) {
  const found = [];
  pieces.forEach((piece, place) => {
    if (piece.special && !special) return;
    const last = found.at(-1);
    const isNext = last && last.places.at(-1) === place - 1;
    if (isNext && isInLetter(piece) && (letters || words)) last.places.push(place);
    else if (isNext && words && piece.continues) {
      last.places.push(place);
      last.label = last.label === "␣" ? piece.text : last.label + piece.text;
    } else {
      const isWhole = letters && !words ? { ...piece, parts: 1 } : piece;
      found.push({ label: words ? piece.text : label(isWhole), places: [place] });
    }
  });
  return found;
}

/**
 * Weights (rows, columns) of groups: summed over the columns of a word, averaged over its rows.
 */
export function grouped(values, columns, rowGroups, columnGroups) {
  const made = new Float32Array(rowGroups.length * columnGroups.length);
  rowGroups.forEach((rowGroup, row) => {
    columnGroups.forEach((columnGroup, column) => {
      let sum = 0;
      for (const one of rowGroup.places) for (const other of columnGroup.places) sum += values[one * columns + other];
      made[row * columnGroups.length + column] = sum / rowGroup.places.length;
    });
  });
  return made;
}
