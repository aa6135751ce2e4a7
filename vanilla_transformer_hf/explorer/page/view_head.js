// Inside one head: the paper's formula with this sentence's values. What the position scheme does.

import { holds, tensor } from "./api.js";
import { scaleFor, sequential } from "./colors.js";
import { button, choice, html, number, section } from "./dom.js";
import { attempt, faultNote } from "./faults.js";
import { productsSection, scaleText } from "./head_products.js";
import { heatMap, roomFor } from "./heat_map.js";
import { label } from "./pieces.js";
import { roving } from "./roving.js";
import { sourceMap } from "./source_map.js";
import { pairRequest, partOf, positionsRequest } from "./state.js";
import { textsOf } from "./texts.js";

const PARTS = [
  ["encoder", "encoder"],
  ["decoder", "decoder"],
  ["cross", "cross"],
];

/** A step of the formula: its name, its shape, what it is made of. */
function step(name, shape, text) {
  return html(
    "li",
    {},
    html("var", {}, name),
    html("span", { class: "shape" }, `[${shape.join(" × ")}]`),
    html("span", {}, text),
  );
}

/** The numbers of the chosen row: every column from q · k to the softmax. */
function rowTable(found, row, column, set) {
  const parts = ["products", "scaled", "mask", "weights"].map((name) => tensor(found[name]));
  const columns = found.columns.length;
  const rows = found.columns.map((piece, place) => {
    const values = parts.map((part) => part.values[row * columns + place]);
    return html(
      "tr",
      { class: place === column ? "chosen" : null },
      html(
        "th",
        { scope: "row" },
        button(label(piece), () => set({ row, column: place }), {
          class: "plain",
          id: `key-${place}`,
          "aria-pressed": String(place === column),
        }),
      ),
      values.map((value) => html("td", {}, number(value))),
      html(
        "td",
        { class: "bar-cell" },
        html("span", { class: "bar", style: `width:${(100 * values[3]).toFixed(1)}%` }),
      ),
    );
  });
  const scale = scaleText(found.scale, found.query.shape[1]);
  const heads = ["key", "q · k", scale, "mask", "softmax"].map((text) => html("th", { scope: "col" }, text));
  return html(
    "div",
    { class: "scroll tall" },
    html(
      "table",
      { class: "numbers" },
      html("thead", {}, html("tr", {}, heads, html("td"))),
      roving(html("tbody", {}, rows)),
    ),
  );
}

/** Vectors as rows of a map as wide as the view, or, of a query alone, as one row. */
function vectors(title, one, labels, only) {
  const { shape, values } = tensor(one);
  const rowLabels = only === undefined ? labels : [labels[only]];
  const shown = only === undefined ? values : values.subarray(only * shape[1], (only + 1) * shape[1]);
  return heatMap({
    title,
    values: shown,
    rows: rowLabels.length,
    columns: shape[1],
    rowLabels,
    cell: Math.max(5, Math.min(32, Math.floor(roomFor(1, rowLabels) / shape[1]))),
    scale: scaleFor(values),
  });
}

async function positionPictures({ state, ask, model }) {
  const stack = partOf(state, model) === "encoder" ? "encoder" : "decoder";
  const found = await ask("positions", positionsRequest(state, stack));
  const pictures = found.pictures.map(({ title, rows, columns, values }) => {
    const { shape, values: numbers } = tensor(values);
    return heatMap({
      title: `${title} (rows: ${rows}, columns: ${columns})`,
      values: numbers,
      rows: shape[0],
      columns: shape[1],
      cell: Math.max(3, Math.min(14, Math.floor(760 / shape[1]))),
    });
  });
  const more =
    found.scheme === "none" ? "which adds nothing" : "which depends on the sentence: see the mask in the table above";
  const text = `Scheme of the ${stack}: ${found.scheme}${pictures.length ? "" : `, ${more}`}.`;
  return section("Positions", html("p", { class: "small" }, text), html("div", { class: "pair" }, pictures));
}

/** The formula of the paper, with the numbers of one query and one key. */
function formula(found, rowLabel, columnLabel, at) {
  const shape = (name) => found[name].shape;
  const value = (name) => tensor(found[name]).values[at];
  const scale = scaleText(found.scale, shape("query")[1]);
  const product = number(value("products"));
  return html(
    "ol",
    { class: "formula" },
    step("Q", shape("query"), "queries: x W^Q, one row for each query token"),
    step("K", shape("key"), "keys: one row for each key token"),
    step("V", shape("value"), "values"),
    step("Q Kᵀ", shape("products"), `${rowLabel} · ${columnLabel} = ${product}`),
    step(scale, shape("scaled"), `${product} ${scale} = ${number(value("scaled"))}`),
    step(
      "+ mask",
      shape("mask"),
      value("mask") < -1e30 ? "−∞: this token comes later and is masked" : `${number(value("mask"))}`,
    ),
    step("softmax", shape("weights"), `exp(…) / Σ exp(…) = ${number(value("weights"))}`),
    step("· V", shape("mixed"), "sum of the values with these weights"),
    step(
      "· W^O",
      shape("contribution"),
      `[${shape("output_weight").join(" × ")}]: what this head adds to the sublayer's output, ` +
        "in which all heads stand side by side",
    ),
  );
}

/** What is chosen, fitted to the model. */
function chosenHead(state, model) {
  const part = partOf(state, model);
  const layer = Math.min(Math.max(0, state.layer), model.layers[part] - 1);
  return { part, layer, head: Math.min(Math.max(0, state.head), model.heads[part][layer] - 1) };
}

function controls({ state, set, model }, pair, rows, row) {
  const { part, layer, head } = chosenHead(state, model);
  const numbers = (name, count) =>
    Array.from({ length: count }, (_, place) => {
      const asked = chosenHead({ ...state, part, layer, head, [name]: place }, model);
      return [place, place, !holds("head", { ...pair, ...asked })];
    });
  const parts = PARTS.filter(([name]) => name in model.layers).map(([name, text]) => {
    const asked = chosenHead({ ...state, part: name }, model);
    return [name, text, !holds("head", { ...pair, ...asked })];
  });
  const queries = rows.map((piece, place) => [place, `${place}: ${label(piece)}`]);
  const change = (name) => (value) => set({ [name]: Number(value) });
  return html(
    "div",
    { class: "controls" },
    choice("Attention", part, parts, (value) => set({ part: value, row: -1, column: -1 })),
    choice("Layer", layer, numbers("layer", model.layers[part]), change("layer")),
    choice("Head", head, numbers("head", model.heads[part][layer]), change("head")),
    rows.length ? choice("Query", row, queries, change("row")) : null,
  );
}

/** The vectors of the chosen query, and all keys and values. */
function vectorMaps(found, row, rowLabels, columnLabels) {
  const of = rowLabels[row];
  return [
    vectors(`q of ${of}`, found.query, rowLabels, row),
    vectors("K", found.key, columnLabels),
    vectors("V", found.value, columnLabels),
    vectors(`weighted sum of ${of}`, found.mixed, rowLabels, row),
    vectors(`contribution of ${of} through W^O`, found.contribution, rowLabels, row),
  ];
}

/** Where the head looks in the recording or image, for each row. */
function overSource(found, source, row, set) {
  const named = found.predicted.length ? found.predicted : found.rows;
  return section(
    source.kind === "speech" ? "Over the spectrogram" : "Over the image",
    html("p", { class: "small" }, "softmax: a row for each query, named by what it predicts."),
    sourceMap({
      title: "softmax over the source",
      source,
      values: tensor(found.weights).values,
      rowLabels: named.map(label),
      pinned: row,
      pin: (chosen) => set({ row: chosen, column: -1 }),
    }),
  );
}

export async function headView(context) {
  const { state, set, ask, model, source, translation } = context;
  const pair = pairRequest(state, translation);
  const found = await attempt(ask("head", { ...pair, ...chosenHead(state, model) }));
  if (found instanceof Error) return [controls(context, pair, [], 0), faultNote(found)];
  const columns = found.columns.length;
  const row = state.row >= 0 && state.row < found.rows.length ? state.row : 0;
  const weights = tensor(found.weights).values.subarray(row * columns, (row + 1) * columns);
  const isColumn = state.column >= 0 && state.column < columns;
  const column = isColumn ? state.column : weights.indexOf(Math.max(...weights));
  const rowLabels = found.rows.map(label);
  const columnLabels = found.columns.map(label);
  const cell = columns <= 24 ? 40 : 14;
  const isNarrow = columns * cell <= roomFor(2, rowLabels);
  const sideBySide = (...maps) => html("div", { class: isNarrow ? "pair" : null }, maps);
  const map = (name, title, scale) =>
    heatMap({
      title,
      values: tensor(found[name]).values,
      rows: found.rows.length,
      columns,
      rowLabels,
      columnLabels,
      cell,
      marked: row,
      scale,
      pick: (newRow, newColumn) => set({ row: newRow, column: newColumn }),
    });
  const scale = scaleText(found.scale, found.query.shape[1]);
  return [
    controls(context, pair, found.rows, row),
    section(
      `softmax(Q Kᵀ ${scale.startsWith("/") ? "/ √d_k" : scale}) V W^O`,
      formula(found, rowLabels[row], columnLabels[column], row * columns + column),
    ),
    source && partOf(state, model) !== "decoder" ? overSource(found, source, row, set) : null,
    section(`The row of ${rowLabels[row]}`, rowTable(found, row, column, set)),
    productsSection(found, { row, column, rowLabels, columnLabels }, textsOf(state), (newColumn) =>
      set({ row, column: newColumn }),
    ),
    section("Vectors", vectorMaps(found, row, rowLabels, columnLabels)),
    section("Matrices", sideBySide(map("products", "Q Kᵀ"), map("weights", "softmax", sequential(1)))),
    await positionPictures(context),
  ].filter(Boolean);
}
