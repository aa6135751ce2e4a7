// Inside one head: the paper's formula with this sentence's values. What the position scheme does.

import { holds, tensor } from "./api.js";
import { scaleFor, sequential } from "./colors.js";
import { attempt, barCell, button, choice, faultNote, html, label, number, offered, range, roving } from "./dom.js";
import { row as tableRow, section, small, table } from "./dom.js";
import { heatMap, roomFor } from "./heat_map.js";
import { sourceMap } from "./source_map.js";
import { pairRequest, partOf, positionsRequest } from "./state.js";
import { say } from "./texts.js";

/** The numbers of the chosen row: every column from q · k to the softmax. */
function rowTable(found, row, column, set) {
  const parts = ["products", "scaled", "mask", "weights"].map((name) => tensor(found[name]));
  const columns = found.columns.length;
  const rows = found.columns.map((piece, place) => {
    const values = parts.map((part) => part.values[row * columns + place]);
    const key = button(label(piece), () => set({ row, column: place }), {
      class: "plain",
      id: `key-${place}`,
      "aria-pressed": place === column,
    });
    const cells = values.map((value) => number(value));
    return tableRow({ class: place === column ? "chosen" : null }, key, cells, barCell(values[3]));
  });
  const heads = [say("head.key"), "q · k", scaleText(found.scale, found.query.shape[1]), say("head.mask"), "softmax"];
  return html("div", { class: "scroll tall" }, roving(table({ class: "numbers" }, [...heads, ""], rows)));
}

/** Vectors as rows of a map as wide as the view, or, of a query alone, as one row. */
function vectors(title, one, labels, only) {
  const { shape, values } = tensor(one);
  const rowLabels = only === undefined ? labels : [labels[only]];
  const shown = only === undefined ? values : values.subarray(only * shape[1], (only + 1) * shape[1]);
  return heatMap({
    title,
    values: shown,
    columns: shape[1],
    rowLabels,
    cell: Math.max(5, Math.min(32, Math.floor(roomFor(1, rowLabels) / shape[1]))),
    scale: scaleFor(values),
  });
}

async function positionPictures({ state, ask, model }) {
  const stack = partOf(state, model) === "encoder" ? "encoder" : "decoder";
  const found = await ask("positions", positionsRequest(state, stack));
  const pictures = found.pictures.map(({ kind, number, values }) => {
    const { shape, values: numbers } = tensor(values);
    return heatMap({
      title: say(`positions.${kind}`, { number }),
      values: numbers,
      columns: shape[1],
      cell: Math.max(3, Math.min(14, Math.floor(760 / shape[1]))),
    });
  });
  const kind = pictures.length ? "scheme" : found.scheme === "none" ? "nothing" : "inside";
  const text = say(`positions.${kind}`, { stack: say(`part.${stack}`), scheme: found.scheme });
  return section(say("positions.title"), small(text), html("div", { class: "pair" }, pictures));
}

/** The formula of the paper, with the numbers of one query and one key. */
function formula(found, rowLabel, columnLabel, at) {
  const value = (name) => tensor(found[name]).values[at];
  const scale = scaleText(found.scale, found.query.shape[1]);
  const product = number(value("products"));
  const steps = [
    ["Q", "query", say("formula.query")],
    ["K", "key", say("formula.key")],
    ["V", "value", say("formula.value")],
    ["Q Kᵀ", "products", `${rowLabel} · ${columnLabel} = ${product}`],
    [scale, "scaled", `${product} ${scale} = ${number(value("scaled"))}`],
    [`+ ${say("head.mask")}`, "mask", value("mask") < -1e30 ? say("formula.masked") : number(value("mask"))],
    ["softmax", "weights", `exp(…) / Σ exp(…) = ${number(value("weights"))}`],
    ["· V", "mixed", say("formula.mixed")],
    ["· W^O", "contribution", say("formula.output", { shape: found.output_weight.shape.join(" × ") })],
  ];
  const items = steps.map(([name, part, text]) =>
    html("li", {}, [
      html("var", {}, name),
      html("span", { class: "shape" }, `[${found[part].shape.join(" × ")}]`),
      html("span", {}, text),
    ]),
  );
  return html("ol", { class: "formula" }, items);
}

/** What is chosen, fitted to the model. */
function chosenHead(state, model) {
  const part = partOf(state, model);
  const layer = Math.min(Math.max(0, state.layer), model.layers[part] - 1);
  return { part, layer, head: Math.min(Math.max(0, state.head), model.heads[part][layer] - 1) };
}

function controls({ state, set, model }, pair, rows, row) {
  const { part, layer, head } = chosenHead(state, model);
  const can = (changes) =>
    holds("head", { ...pair, ...chosenHead({ ...state, part, layer, head, ...changes }, model) });
  const isKept = (name) => can({ part: name, layer: state.layer, head: state.head });
  const parts = offered(Object.keys(model.layers), (name) => say(`part.${name}`), isKept);
  const numbers = (name, count) => offered(range(count), String, (place) => can({ [name]: place }));
  const queries = offered(range(rows.length), (place) => `${place}: ${label(rows[place])}`);
  const choose = (name, value, options) =>
    choice(say(`head.${name}`), value, options, (one) => set({ [name]: Number(one) }), `choose-${name}`);
  const setPart = (value) => set({ part: value, row: -1, column: -1 });
  return html("div", { class: "controls" }, [
    choice(say("attention.attention"), part, parts, setPart, "choose-attention"),
    choose("layer", layer, numbers("layer", model.layers[part])),
    choose("head", head, numbers("head", model.heads[part][layer])),
    rows.length ? choose("row", row, queries) : null,
  ]);
}

/** Where the head looks in the recording or image, for each row. */
function overSource(found, source, row, set) {
  const named = found.predicted.length ? found.predicted : found.rows;
  return section(
    say(`head.over_${source.kind}`),
    small(say("head.over_help")),
    sourceMap({
      title: say("head.over_title"),
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
      rowLabels,
      columnLabels,
      cell,
      marked: row,
      scale,
      pick: (newRow, newColumn) => set({ row: newRow, column: newColumn }),
    });
  const scale = scaleText(found.scale, found.query.shape[1]);
  const token = rowLabels[row];
  return [
    controls(context, pair, found.rows, row),
    section(
      `softmax(Q Kᵀ ${scale.startsWith("/") ? "/ √d_k" : scale}) V W^O`,
      formula(found, token, columnLabels[column], row * columns + column),
    ),
    source && partOf(state, model) !== "decoder" ? overSource(found, source, row, set) : null,
    section(say("head.row_of", { token }), rowTable(found, row, column, set)),
    productsSection(found, { row, column, rowLabels, columnLabels }, (newColumn) => set({ row, column: newColumn })),
    section(
      say("head.vectors"),
      vectors(say("head.query_of", { token }), found.query, rowLabels, row),
      vectors("K", found.key, columnLabels),
      vectors("V", found.value, columnLabels),
      vectors(say("head.mixed_of", { token }), found.mixed, rowLabels, row),
      vectors(say("head.output_of", { token }), found.contribution, rowLabels, row),
    ),
    section(say("head.matrices"), sideBySide(map("products", "Q Kᵀ"), map("weights", "softmax", sequential(1)))),
    await positionPictures(context),
  ].filter(Boolean);
}

// ----------------------------------------------------- q · k of one query and one key, and of that query and all keys

const CELL = { least: 5, most: 44 };

/** "/ √64", where the scale is that of the paper, else "× 0.5". */
function scaleText(scale, width) {
  const isRoot = Math.abs(scale * scale * width - 1) < 1e-4;
  return isRoot ? `/ √${width}` : `× ${number(scale)}`;
}

/** The section of the Head view; `pick` chooses a key. */
function productsSection(found, { row, column, rowLabels, columnLabels }, pick) {
  const width = found.query.shape[1];
  const query = tensor(found.query).values.subarray(row * width, (row + 1) * width);
  const keys = tensor(found.key).values;
  const products = keys.map((value, at) => value * query[at % width]);
  const key = keys.subarray(column * width, (column + 1) * width);
  const product = products.subarray(column * width, (column + 1) * width);
  const at = row * columnLabels.length + column;
  const value = (name) => number(tensor(found[name]).values[at]);
  const names = ["q", "k", "q × k"];
  const cellOf = (labels) => Math.max(CELL.least, Math.min(CELL.most, Math.floor(roomFor(1, labels) / width)));
  const sum = [
    `q · k = ${value("products")}`,
    `${scaleText(found.scale, width)} = ${value("scaled")}`,
    `+ ${value("mask")} (${say("products.mask")})`,
    `softmax → ${value("weights")}`,
  ];
  const about = { query: rowLabels[row], key: columnLabels[column], width };
  return section(
    say("products.title"),
    small(say("products.about", about)),
    heatMap({
      id: "products-one",
      title: say("products.one", about),
      values: Float32Array.from([...query, ...key, ...product]),
      columns: width,
      rowLabels: names,
      cell: cellOf(names),
    }),
    html("p", { id: "products-sum" }, sum.join("  ")),
    heatMap({
      id: "products-all",
      title: say("products.all", about),
      values: products,
      columns: width,
      rowLabels: columnLabels,
      cell: cellOf(columnLabels),
      marked: column,
      pick,
    }),
  );
}
