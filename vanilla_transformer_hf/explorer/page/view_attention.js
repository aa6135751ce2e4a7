// Attention: lines between tokens, all heads of all layers, or a heat map with numbers.

import { holds, tensor } from "./api.js";
import { attentionLines } from "./attention_lines.js";
import { HEADS, sequential, themed } from "./colors.js";
import { attempt, button, checkbox, choice, contextOf, faultNote, html, label, labelled, percent } from "./dom.js";
import { offered, range, roving, row, section, small, table } from "./dom.js";
import { heatMap } from "./heat_map.js";
import { pictured } from "./keep.js";
import { sourceMap } from "./source_map.js";
import { pairRequest, partOf } from "./state.js";
import { say } from "./texts.js";

const SMALL = 32; // side of a picture in the grid

/** The pictures of a part: what has the source's positions as columns is drawn over the source. */
function picturesOf(part, model) {
  const isOver = model.reads !== "text" && part !== "decoder";
  return [isOver ? "source" : "lines", "map", "grid"];
}

function isMerged(state) {
  return state.heads === "mean" || state.heads === "max";
}

/** Heads that are chosen: all of them for the mean and the maximum. */
function chosenHeads(state, count) {
  const all = range(count);
  if (isMerged(state)) return all;
  const named = new Set(state.heads.split(",").map(Number));
  return all.filter((head) => named.has(head));
}

/** The weights (rows, columns) of several heads as one map: their mean or their maximum. */
function merged({ shape, values }, heads, kind) {
  const [, rows, columns] = shape;
  const size = rows * columns;
  const made = new Float32Array(size);
  for (const head of heads) {
    const start = head * size;
    for (let place = 0; place < size; place++) {
      const value = values[start + place];
      if (kind === "max") {
        if (value > made[place]) made[place] = value;
      } else made[place] += value / heads.length;
    }
  }
  return made;
}

/** Buttons for the mean, the maximum, and each head. */
export function headButtons({ state, set }, count) {
  const chosen = isMerged(state) ? [] : chosenHeads(state, count);
  const flip = (head) => {
    const next = chosen.includes(head)
      ? chosen.filter((one) => one !== head)
      : [...chosen, head].sort((a, b) => a - b);
    set({ heads: next.length ? next.join(",") : "mean" });
  };
  const boxes = range(count).map((head) =>
    button(String(head), () => flip(head), {
      class: "swatch",
      style: `--head:${HEADS[head % HEADS.length]}`,
      "aria-pressed": chosen.includes(head),
      "aria-label": say("attention.head", { head }),
    }),
  );
  const all = ["mean", "max"].map((name) =>
    button(say(`attention.${name}`), () => set({ heads: name }), { "aria-pressed": state.heads === name }),
  );
  const group = { class: "heads", role: "group", "aria-label": say("attention.heads_label") };
  return roving(html("div", group, html("span", {}, say("attention.heads")), all, boxes));
}

/** The controls of all pictures, and `more` of this one; `layers` are those that are on. */
function controls({ state, set, model }, pair, layers, more) {
  const isKept = (part) => holds("grid", { ...pair, part, size: SMALL });
  const parts = offered(Object.keys(model.layers), (name) => say(`attention.part_${name}`), isKept);
  const nameOf = (name) => say(name === "source" ? `attention.over_${model.reads}` : `attention.${name}`);
  const pictures = offered(picturesOf(state.part, model), nameOf);
  const choices = offered(layers, String, (layer) => holds("attention", { ...pair, part: state.part, layer }));
  const setPart = (part) => set({ part, layer: -1, heads: "mean", row: -1, column: -1 });
  const setLayer = (layer) => set({ layer: Number(layer) });
  return html("div", { class: "controls" }, [
    choice(say("attention.attention"), state.part, parts, setPart, "choose-attention"),
    choice(say("attention.picture"), state.picture, pictures, (picture) => set({ picture }), "choose-picture"),
    state.picture === "grid" ? null : choice(say("head.layer"), state.layer, choices, setLayer, "choose-layer"),
    more,
  ]);
}

/** The controls of one layer's pictures. */
function layerControls(context, count, hasLetters) {
  const { state, set } = context;
  const threshold = html("input", {
    type: "range",
    id: "threshold",
    min: 0,
    max: 0.5,
    step: 0.01,
    value: state.threshold,
    change: (event) => set({ threshold: Number(event.target.value) }),
  });
  const flag = (name) =>
    checkbox(say(`attention.${name}`), state[name], (value) => set({ [name]: value, row: -1, column: -1 }));
  return [
    headButtons(context, count),
    state.picture === "lines"
      ? labelled(say("attention.threshold", { share: percent(state.threshold) }), threshold)
      : null,
    hasLetters && !state.words ? flag("letters") : null,
    flag("words"),
    flag("special"),
  ];
}

/** The picture of one layer, of `beside` such pictures that stand beside each other. */
export function layerPicture({ state, set, source }, found, count, id = "attention", beside = 1) {
  const weights = tensor(found.weights);
  const columns = weights.shape[2];
  const size = weights.shape[1] * columns;
  const rowGroups = groups(found.rows, state);
  const columnGroups = groups(found.columns, state);
  const heads = chosenHeads(state, count);
  const group = (values) => grouped(values, columns, rowGroups, columnGroups);
  const options = {
    title: titleOf(state, heads),
    rowLabels: rowGroups.map((one) => one.label),
    columnLabels: columnGroups.map((one) => one.label),
  };
  if (state.picture === "source") {
    // A row is named by what it predicts: what is looked at is that token's source.
    const asking = groups(found.predicted.length ? found.predicted : found.rows, state);
    const places = columnGroups.map(({ places: [place] }) => ({ places: [place] }));
    return sourceMap({
      title: options.title,
      source,
      values: grouped(merged(weights, heads, state.heads), columns, asking, places),
      rowLabels: asking.map((one) => one.label),
      pinned: state.row,
      pin: (row) => set({ row, column: -1 }),
    });
  }
  if (state.picture === "map") {
    return heatMap({
      ...options,
      id,
      values: group(merged(weights, heads, state.heads)),
      cell: beside * columnGroups.length <= 24 ? 44 : beside * columnGroups.length <= 80 ? 18 : 9,
      scale: sequential(1),
      marked: state.row,
      pick: (row, column) => set({ row: row === state.row ? -1 : row, column }),
    });
  }
  const maps = isMerged(state)
    ? [{ values: group(merged(weights, heads, state.heads)), color: null }]
    : heads.map((head) => ({
        values: group(weights.values.subarray(head * size, (head + 1) * size)),
        color: HEADS[head % HEADS.length],
      }));
  return attentionLines({
    ...options,
    maps,
    threshold: state.threshold,
    pinned: state.row,
    pinnedColumn: state.column,
    pin: (row, column) => set({ row, column }),
  });
}

function titleOf(state, heads) {
  const key = isMerged(state) ? state.heads : heads.length > 1 ? "heads" : "head";
  const which = say(`attention.of_${key}`, { heads: heads.join(", ") });
  return say("attention.title", { name: say(`attention.name_${state.part}`), layer: state.layer, which });
}

/** What rows and columns are. */
function noteOf(model, part, picture) {
  if (picture === "source") return say(part === "encoder" ? "attention.note_over_own" : "attention.note_over");
  if (model.kind === "causal") return say("attention.note_causal");
  return say(part === "encoder" ? "attention.note_encoder" : "attention.note_decoder");
}

/** How diagonal a layer's cross-attention to a file is. */
async function orderNote({ ask, state }, pair, heads) {
  const found = await attempt(ask("diagonality", { ...pair, layer: state.layer }));
  if (found instanceof Error) return null;
  const place = heads.length === 1 && !isMerged(state) ? heads[0] + 1 : 0;
  const [order, away] = [found.order[place], found.off_diagonal[place]];
  const values = { head: heads[0], tau: order === null ? "–" : order.toFixed(2), away: percent(away) };
  const text = say(place ? "attention.order_head" : "attention.order", values);
  return html("p", { class: "small", id: "diagonality" }, text);
}

/** The state with a part and a layer that there are, and heads of it. */
export function fitting(state, model, layers) {
  const part = partOf(state, model);
  const middle = Math.max(0, Math.floor(layers.length / 2) - (part === "cross" ? 1 : 0));
  // Over a file, rows are what is predicted, whose source is looked at in the upper layers.
  const first = part === "cross" && model.reads !== "text" ? layers.length - 1 : middle;
  const layer = layers.includes(state.layer) ? state.layer : layers[first];
  const pictures = picturesOf(part, model);
  const picture = pictures.includes(state.picture) ? state.picture : pictures[0];
  const fits = { ...state, part, layer, picture };
  const isNone = !chosenHeads(fits, model.heads[part][layer] ?? 0).length;
  return isNone ? { ...fits, heads: "mean" } : fits;
}

export async function attentionView(context) {
  const { set, ask, model, translation } = context;
  const pair = pairRequest(context.state, translation);
  const part = partOf(context.state, model);
  const thumbnails = await attempt(ask("grid", { ...pair, part, size: SMALL }));
  const all = range(model.layers[part]);
  const state = fitting(context.state, model, thumbnails.layers ?? all);
  const shown = { ...context, state };
  const bar = (more) => controls(shown, pair, thumbnails.layers ?? all, more);
  if (thumbnails instanceof Error) return [bar(), faultNote(thumbnails)];
  if (state.picture === "grid") {
    const open = (layer, head) => set({ layer, heads: String(head), picture: "map" });
    const grid = headGrid(tensor(thumbnails.weights), thumbnails.layers, model.heads[part], open);
    return [bar(), section(say("attention.grid_title"), grid)];
  }
  const found = await attempt(ask("attention", { ...pair, part, layer: state.layer }));
  if (found instanceof Error) return [bar(), faultNote(found)];
  const count = model.heads[part][state.layer];
  const hasLetters = [...found.rows, ...found.columns].some(isInLetter);
  const picture = layerPicture(shown, found, count);
  const heads = chosenHeads(state, count);
  const isFile = model.reads !== "text" && part === "cross";
  return [
    bar(layerControls(shown, count, hasLetters)),
    section(
      titleOf(state, heads),
      small(noteOf(model, part, state.picture)),
      isFile ? await orderNote(shown, pair, heads) : null,
      picture,
    ),
  ];
}

// ------------------------------------------------------------------------------ all heads of all layers as small maps

const SIDE = 112;

/**
 * Weights { shape: [layers, heads, rows, columns], values }, of which each layer has so many heads
 * as `counts` says; `open` is called with a layer's number and a head.
 */
function headGrid({ shape, values }, layers, counts, open) {
  const [, heads, rows, columns] = shape,
    scale = sequential(1);
  const wide = Math.max(columns, rows),
    width = Math.max(28, Math.round((SIDE * columns) / wide)),
    height = Math.max(28, Math.round((SIDE * rows) / wide));

  function paint(context, x, y, place) {
    const start = place * rows * columns;
    context.fillStyle = themed("cell");
    context.fillRect(x, y, width, height);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        context.fillStyle = scale(values[start + row * columns + column]);
        const [cellX, cellY] = [x + (column * width) / columns, y + (row * height) / rows];
        context.fillRect(cellX, cellY, width / columns + 0.5, height / rows + 0.5);
      }
    }
  }
  const nameOf = {
    layer: (layer) => say("figure.layer", { number: layer }),
    head: (head) => say("head.of", { head }),
  };
  const rowsOfMaps = layers.map((layer, index) => {
    const cells = range(counts[layer]).map((head) => {
      const canvas = html("canvas");
      paint(contextOf(canvas, width, height), 0, 0, index * heads + head);
      const name = say("attention.open", { layer: nameOf.layer(layer), head: nameOf.head(head) });
      return button(canvas, () => open(layer, head), { class: "small-map", "aria-label": name });
    });
    return row({}, nameOf.layer(layer), cells);
  });
  const names = range(heads).map(nameOf.head);

  const left = 70, // of the names of layers in the whole picture
    top = 24;
  function paintWhole(context) {
    context.font = "12px sans-serif";
    context.fillStyle = themed("ink");
    names.forEach((name, head) => context.fillText(name, left + head * (width + 8), 14));
    layers.forEach((layer, index) => {
      const y = top + index * (height + 8);
      context.fillStyle = themed("ink");
      context.fillText(nameOf.layer(layer), 6, y + height / 2);
      for (let head = 0; head < counts[layer]; head++)
        paint(context, left + head * (width + 8), y, index * heads + head);
    });
  }
  const size = { width: left + heads * (width + 8), height: top + layers.length * (height + 8) };
  const help = html("span", { class: "small" }, say("attention.grid_help"));
  const maps = roving(table({ class: "grid" }, ["", ...names], rowsOfMaps));
  return pictured(help, "all-heads", { ...size, paint: paintWhole }, html("div", { class: "scroll" }, maps));
}

// --------------------------------------------------------------------------------- tokens joined to letters and words

/** Whether a piece is some of the bytes of a letter, and not the first. */
function isInLetter(piece) {
  return piece.parts > 1 && piece.part > 1;
}

/**
 * Groups of places: pieces that make a letter, or a word, are one if `letters` or `words`. Without
 * special tokens, if these are to be hidden.
 */
function groups(pieces, { letters, words, special }) {
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
function grouped(values, columns, rowGroups, columnGroups) {
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
