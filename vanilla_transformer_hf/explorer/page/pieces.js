// Tokens as labels, and tokens joined to words.

/** What a token is called: one inside a word begins with "·". */
export function label(piece) {
  return piece.continues ? `·${piece.text}` : piece.text;
}

/** Groups of places that make one word each, if `joinsWords`; without special tokens, unless `showsSpecial`. */
export function groups(pieces, joinsWords, showsSpecial) {
  const found = [];
  pieces.forEach((piece, place) => {
    if (piece.special && !showsSpecial) return;
    const last = found.at(-1);
    if (joinsWords && piece.continues && last && last.places.at(-1) === place - 1) {
      last.places.push(place);
      last.label += piece.text;
    } else found.push({ label: joinsWords ? piece.text : label(piece), places: [place] });
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
      for (const one of rowGroup.places)
        for (const other of columnGroup.places) sum += values[one * columns + other];
      made[row * columnGroups.length + column] = sum / rowGroup.places.length;
    });
  });
  return made;
}
