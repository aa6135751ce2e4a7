// Inside one head: the formula of the paper with this sentence's values in it. And what the position scheme does.

import { tensor } from "./api.js";
import { scaleFor, sequential } from "./colors.js";
import { choice, html, number, section } from "./dom.js";
import { heatMap } from "./heat_map.js";
import { label } from "./pieces.js";
import { pairRequest, partOf, positionsRequest } from "./state.js";

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
        html(
          "button",
          {
            type: "button",
            class: "plain",
            id: `key-${place}`,
            click: () => set({ column: place }),
          },
          label(piece),
        ),
      ),
      values.map((value) => html("td", {}, number(value))),
      html(
        "td",
        { class: "bar-cell" },
        html("span", { class: "bar", style: `width:${(100 * values[3]).toFixed(1)}%` }),
      ),
    );
  });
  const heads = ["key", "q · k", "/ √d_k", "mask", "softmax", ""].map((text) =>
    html("th", { scope: "col" }, text),
  );
  return html(
    "div",
    { class: "scroll tall" },
    html(
      "table",
      { class: "numbers" },
      html("thead", {}, html("tr", {}, heads)),
      html("tbody", {}, rows),
    ),
  );
}

/** Vectors as rows of a map. */
function vectors(title, one, labels, only) {
  const { shape, values } = tensor(one);
  const rows = only === undefined ? shape[0] : 1;
  const shown =
    only === undefined ? values : values.subarray(only * shape[1], (only + 1) * shape[1]);
  return heatMap({
    title,
    values: shown,
    rows,
    columns: shape[1],
    rowLabels: only === undefined ? labels : [labels[only]],
    cell: Math.max(5, Math.min(22, Math.floor(640 / shape[1]))),
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
  const text = pictures.length
    ? `Scheme of the ${stack}: ${found.scheme}.`
    : `Scheme of the ${stack}: ${found.scheme}, ${found.scheme === "none" ? "which adds nothing" : "which depends on the sentence: see the mask in the table above"}.`;
  return section(
    "Positions",
    html("p", { class: "small" }, text),
    html("div", { class: "pair" }, pictures),
  );
}

export async function headView(context) {
  const { state, set, ask, model, translation } = context;
  const pair = pairRequest(state, translation),
    part = partOf(state, model);
  const layer = Math.min(Math.max(0, state.layer), model.layers[part] - 1);
  const count = model.heads[part][layer],
    head = Math.min(state.head, count - 1);
  const numbers = (count) => Array.from({ length: count }, (_, place) => [place, place]);
  const controls = (rows, row) =>
    html(
      "div",
      { class: "controls" },
      choice(
        "Attention",
        part,
        PARTS.filter(([name]) => name in model.layers),
        (value) => set({ part: value, row: -1, column: -1 }),
      ),
      choice("Layer", layer, numbers(model.layers[part]), (value) => set({ layer: Number(value) })),
      choice("Head", head, numbers(count), (value) => set({ head: Number(value) })),
      choice(
        "Query",
        row,
        rows.map((piece, place) => [place, `${place}: ${label(piece)}`]),
        (value) => set({ row: Number(value) }),
      ),
    );
  const found = await ask("head", { ...pair, part, layer, head });
  const row = state.row >= 0 && state.row < found.rows.length ? state.row : 0;
  const weights = tensor(found.weights),
    columns = found.columns.length;
  const strongest = weights.values.subarray(row * columns, (row + 1) * columns);
  const column =
    state.column >= 0 && state.column < columns
      ? state.column
      : strongest.indexOf(Math.max(...strongest));
  const rowLabels = found.rows.map(label),
    columnLabels = found.columns.map(label);
  const shape = (name) => found[name].shape;
  const d_k = shape("query")[1],
    at = row * columns + column;
  const value = (name) => tensor(found[name]).values[at];
  const formula = html(
    "ol",
    { class: "formula" },
    step("Q", shape("query"), "queries: x W^Q, one row for each query token"),
    step("K", shape("key"), "keys: one row for each key token"),
    step("V", shape("value"), "values"),
    step(
      "Q Kᵀ",
      shape("products"),
      `${rowLabels[row]} · ${columnLabels[column]} = ${number(value("products"))}`,
    ),
    step(
      "/ √d_k",
      shape("scaled"),
      `√${d_k} = ${number(1 / found.scale)}: ${number(value("products"))} / ${number(1 / found.scale)} = ${number(value("scaled"))}`,
    ),
    step(
      "+ mask",
      shape("mask"),
      value("mask") < -1e30
        ? "−∞: this token comes later and is masked"
        : `${number(value("mask"))}`,
    ),
    step("softmax", shape("weights"), `exp(…) / Σ exp(…) = ${number(value("weights"))}`),
    step("· V", shape("mixed"), "sum of the values with these weights"),
    step(
      "· W^O",
      shape("contribution"),
      `[${shape("output_weight").join(" × ")}]: what this head adds to the sublayer's output, in which all heads stand side by side`,
    ),
  );
  const map = (name, title, scale) =>
    heatMap({
      title,
      values: tensor(found[name]).values,
      rows: found.rows.length,
      columns,
      rowLabels,
      columnLabels,
      cell: columns <= 24 ? 40 : 14,
      marked: row,
      scale,
      pick: (newRow, newColumn) => set({ row: newRow, column: newColumn }),
    });
  return [
    controls(found.rows, row),
    section("softmax(Q Kᵀ / √d_k) V W^O", formula),
    section(`The row of ${rowLabels[row]}`, rowTable(found, row, column, set)),
    section(
      "Vectors",
      html(
        "div",
        { class: "pair" },
        vectors(`q of ${rowLabels[row]}`, found.query, rowLabels, row),
        vectors("K", found.key, columnLabels),
        vectors("V", found.value, columnLabels),
        vectors(`weighted sum of ${rowLabels[row]}`, found.mixed, rowLabels, row),
        vectors(
          `contribution of ${rowLabels[row]} through W^O`,
          found.contribution,
          rowLabels,
          row,
        ),
      ),
    ),
    section("Matrices", map("products", "Q Kᵀ"), map("weights", "softmax", sequential(1))),
    await positionPictures(context),
  ];
}
