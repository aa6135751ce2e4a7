// Attention: lines between tokens, all heads of all layers, or a heat map with numbers.

import { attentionLines } from "./attention_lines.js";
import { tensor } from "./api.js";
import { HEADS, sequential } from "./colors.js";
import { checkbox, choice, html, labelled, percent, section } from "./dom.js";
import { headGrid } from "./head_grid.js";
import { heatMap } from "./heat_map.js";
import { grouped, groups } from "./pieces.js";
import { pairRequest, partOf } from "./state.js";

const PARTS = [
  ["encoder", "encoder: source to source"],
  ["decoder", "decoder: target to target"],
  ["cross", "cross: target to source"],
];
const PICTURES = [
  ["lines", "lines"],
  ["map", "heat map"],
  ["grid", "all heads"],
];

/** Heads that are chosen: all of them for the mean and the maximum. */
function chosenHeads(state, count) {
  if (state.heads === "mean" || state.heads === "max")
    return Array.from({ length: count }, (_, head) => head);
  return state.heads
    .split(",")
    .map(Number)
    .filter((head) => head < count);
}

/** The weights (rows, columns) of several heads as one map: their mean or their maximum. */
function merged({ shape, values }, heads, kind) {
  const [, rows, columns] = shape,
    size = rows * columns;
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

function headButtons({ state, set }, count) {
  const isAll = state.heads === "mean" || state.heads === "max",
    chosen = new Set(chosenHeads(state, count));
  const boxes = Array.from({ length: count }, (_, head) =>
    html(
      "button",
      {
        type: "button",
        class: "swatch",
        style: `--head:${HEADS[head % HEADS.length]}`,
        "aria-pressed": String(!isAll && chosen.has(head)),
        "aria-label": `head ${head}`,
        click: () => {
          const before = isAll ? [] : [...chosen];
          const next = before.includes(head)
            ? before.filter((one) => one !== head)
            : [...before, head].sort((a, b) => a - b);
          set({ heads: next.length ? next.join(",") : "mean" });
        },
      },
      String(head),
    ),
  );
  const all = [
    ["mean", "mean"],
    ["max", "maximum"],
  ].map(([name, text]) =>
    html(
      "button",
      {
        type: "button",
        "aria-pressed": String(state.heads === name),
        click: () => set({ heads: name }),
      },
      text,
    ),
  );
  return html(
    "div",
    { class: "heads", role: "group", "aria-label": "heads" },
    html("span", {}, "Heads"),
    all,
    boxes,
  );
}

function controls(context, layers, count) {
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
  return html(
    "div",
    { class: "controls" },
    choice(
      "Attention",
      state.part,
      PARTS.filter(([name]) => name in context.model.layers),
      (part) => set({ part, layer: -1, heads: "mean", row: -1, column: -1 }),
    ),
    choice("Picture", state.picture, PICTURES, (picture) => set({ picture })),
    state.picture === "grid"
      ? null
      : choice(
          "Layer",
          state.layer,
          layers.map((one) => [one, one]),
          (layer) => set({ layer: Number(layer) }),
        ),
    state.picture === "grid" ? null : headButtons(context, count),
    state.picture === "lines" ? labelled(`Threshold ${percent(state.threshold)}`, threshold) : null,
    state.picture === "grid"
      ? null
      : checkbox("join tokens to words", state.words, (words) =>
          set({ words, row: -1, column: -1 }),
        ),
    state.picture === "grid"
      ? null
      : checkbox("special tokens", state.special, (special) =>
          set({ special, row: -1, column: -1 }),
        ),
  );
}

export async function attentionView(context) {
  const { state, set, ask, model, translation } = context;
  const pair = pairRequest(state, translation),
    part = partOf(state, model);
  const small = await ask("grid", { ...pair, part, size: 32 });
  const layers = small.layers;
  const layer = layers.includes(state.layer)
    ? state.layer
    : layers[Math.max(0, Math.floor(layers.length / 2) - (part === "cross" ? 1 : 0))];
  const count = model.heads[part][layer];
  const shown = { ...context, state: { ...state, layer, part } };
  const bar = controls(shown, layers, count);
  if (state.picture === "grid") {
    return [
      bar,
      section(
        "All heads of all layers",
        headGrid(tensor(small.weights), layers, model.heads[part], (one, head) =>
          set({ layer: one, heads: String(head), picture: "map" }),
        ),
      ),
    ];
  }
  const found = await ask("attention", { ...pair, part, layer });
  const weights = tensor(found.weights),
    columns = weights.shape[2];
  const rowGroups = groups(found.rows, state.words, state.special),
    columnGroups = groups(found.columns, state.words, state.special);
  const heads = chosenHeads(state, count),
    isAll = state.heads === "mean" || state.heads === "max";
  const group = (values) => grouped(values, columns, rowGroups, columnGroups);
  const size = weights.shape[1] * columns;
  const maps =
    isAll || state.picture === "map"
      ? [{ values: group(merged(weights, heads, state.heads)), color: null }]
      : heads.map((head) => ({
          values: group(weights.values.subarray(head * size, (head + 1) * size)),
          color: HEADS[head % HEADS.length],
        }));
  const rowLabels = rowGroups.map((one) => one.label),
    columnLabels = columnGroups.map((one) => one.label);
  const title = `${part} attention, layer ${layer}, ${isAll ? `${state.heads} of heads` : `head ${heads.join(", ")}`}`;
  const pin = (row, column) => set({ row: row === state.row ? -1 : row, column });
  const picture =
    state.picture === "map"
      ? heatMap({
          title,
          values: maps[0].values,
          rows: rowGroups.length,
          columns: columnGroups.length,
          rowLabels,
          columnLabels,
          cell: columnGroups.length <= 24 ? 44 : columnGroups.length <= 80 ? 18 : 9,
          scale: sequential(1),
          marked: state.row,
          pick: pin,
        })
      : attentionLines({
          title,
          maps,
          rowLabels,
          columnLabels,
          threshold: state.threshold,
          pinned: state.row,
          pinnedColumn: state.column,
          pin: (row, column) => set({ row, column }),
        });
  const note =
    model.kind === "causal"
      ? "Left: tokens that were read; each row predicts the next token."
      : part === "encoder"
        ? "Left: source tokens as queries. Right: source tokens as keys."
        : "Left: tokens that the decoder has read, <pad> being its start; each row predicts the next token.";
  return [bar, section(title, html("p", { class: "small" }, note), picture)];
}
