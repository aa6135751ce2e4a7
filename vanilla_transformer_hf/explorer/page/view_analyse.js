// Analyse: what a token of the output depends on. The other two pictures are in analyse_layers.js.

import { neuronsPicture, ranksPicture } from "./analyse_layers.js";
import { holds, tensor } from "./api.js";
import { diverging, readableOn, sequential } from "./colors.js";
import { button, choice, html, number, percent, section, small } from "./dom.js";
import { attempt, faultNote } from "./faults.js";
import { heatMap, roomFor } from "./heat_map.js";
import { label } from "./pieces.js";
import { roving } from "./roving.js";
import { sourceMap } from "./source_map.js";
import { pairRequest } from "./state.js";
import { say, sentences } from "./texts.js";

const METHODS = ["left_out", "gradient_x_input", "gradient", "integrated_gradients", "rollout"];
const LOCAL = ["gradient_x_input", "gradient"]; // what a small change does
const UNSIGNED = ["gradient", "rollout"];
const BASELINES = ["zero", "mean"];
const STEPS = ["16", "32", "64", "128", "256", "512", "1024"];
const ROWS = ["all", "chosen"];
const MOST_MISSED = 0.05; // of the difference of the logits
const CELL = { readable: 46, small: 16 };

/** The number of the chosen token of the output. */
export function chosenPiece(state, count) {
  return state.step >= 0 && state.step < count ? state.step : 0;
}

function requestOf(state, pair, count) {
  const request = { ...pair, method: state.method };
  if (state.method === "integrated_gradients") {
    request.steps = Number(state.steps);
    request.baseline = state.baseline;
    if (state.rows === "chosen") request.piece = chosenPiece(state, count);
  }
  return request;
}

/** Which method, and for integrated gradients how exact and for how many rows. */
function methodControls({ state, set }, pair, count) {
  const options = (name, values, text) =>
    values.map((value) => {
      const asked = requestOf({ ...state, [name]: value }, pair, count);
      return [value, text(value), !holds("attributions", asked)];
    });
  const named = (name, values) => options(name, values, (value) => say(`analyse.${name}.${value}`));
  const choose = (name, among) =>
    choice(say(`analyse.${name}`), state[name], among, (value) => set({ [name]: value }), name);
  const isIntegral = state.method === "integrated_gradients";
  return [
    choose("method", named("method", METHODS)),
    isIntegral ? choose("baseline", named("baseline", BASELINES)) : null,
    isIntegral ? choose("steps", options("steps", STEPS, String)) : null,
    isIntegral ? choose("rows", named("rows", ROWS)) : null,
  ];
}

/** Colours of the method's numbers: those of rollout and lengths have no sign. */
function scaleOf(values, method) {
  const most = values.reduce((found, value) => Math.max(found, Math.abs(value)), 0);
  return (UNSIGNED.includes(method) ? sequential : diverging)(most);
}

/** Tokens, coloured by their numbers. */
function weighed(pieces, values, scale) {
  return html("ul", { class: "weighed" }, [
    pieces.map((piece, place) => {
      const color = scale(values[place]);
      return html("li", { style: `background:${color};color:${readableOn(color)}` }, [
        html("span", { class: "piece" }, label(piece)),
        html("span", { class: "value" }, number(values[place], 3)),
      ]);
    }),
  ]);
}

/** The output as buttons: the one that is pressed is explained. */
function outputButtons(found, chosen, { set }) {
  const buttons = found.output.map((piece, place) =>
    button(label(piece), () => set({ step: place }), {
      id: `output-${place}`,
      "aria-pressed": String(place === chosen),
    }),
  );
  const group = { class: "heads", role: "group", "aria-label": say("analyse.output") };
  return roving(html("div", group, buttons));
}

/** What the numbers of a row sum to, and what they should. */
function sumLine(found, row, { state }) {
  const at = (name) => found[name] && tensor(found[name]).values[row];
  const [total, logit, baseline] = ["totals", "logits", "baselines"].map(at);
  const shown = { total: number(total), logit: number(logit), baseline: number(baseline) };
  const lines = [say(`analyse.sum.${state.method}`, shown)];
  if (state.method === "integrated_gradients") {
    const missed = Math.abs(total - (logit - baseline));
    const share = missed / Math.max(1e-9, Math.abs(logit - baseline));
    const difference = { difference: number(logit - baseline), missed: number(missed, 3) };
    lines.push(say("analyse.missed", { ...shown, ...difference, share: percent(share) }));
    if (share > MOST_MISSED) lines.push(say("analyse.incomplete"));
  }
  return html("p", { class: "small", id: "sum" }, sentences(lines));
}

/** Over a recording or an image: shares of each row's numbers, without their signs. */
function overSource(found, row, { set, source }) {
  const { shape, values } = tensor(found.scores);
  const count = found.source.length;
  const shares = new Float32Array(shape[0] * count);
  found.numbers.forEach((_, at) => {
    const sizes = values.subarray(at * shape[1], (at + 1) * shape[1]).map(Math.abs);
    const whole = sizes.reduce((sum, size) => sum + size, 0) || 1;
    shares.set(
      sizes.subarray(0, count).map((size) => size / whole),
      at * count,
    );
  });
  return sourceMap({
    title: say("analyse.shares"),
    source,
    values: shares,
    rowLabels: found.numbers.map((place) => label(found.output[place])),
    pinned: row,
    pin: (chosen) => chosen >= 0 && set({ step: found.numbers[chosen] }),
    about: "analyse",
  });
}

/** The row of the chosen token as the sentence itself, in colours. */
function sentencePart(found, row, values, context) {
  const { source, state } = context;
  const chosen = found.numbers[row];
  const scale = scaleOf(values, state.method);
  const parts = [outputButtons(found, chosen, context)];
  if (found.source.length) {
    const shown = source
      ? overSource(found, row, context)
      : weighed(found.source, values.subarray(0, found.source.length), scale);
    parts.push(html("h3", {}, say("analyse.source")));
    if (source) parts.push(small(say("analyse.shares")));
    parts.push(shown);
  }
  if (found.read.length) {
    const before = found.read.length - found.output.length + chosen + 1; // the rest comes later
    const shown = weighed(found.read.slice(0, before), values.subarray(found.source.length), scale);
    parts.push(html("h3", {}, say("analyse.read")), shown);
  }
  const title = say("analyse.of", { piece: label(found.output[chosen]) });
  return section(title, parts, sumLine(found, row, context));
}

/** All rows, over the source and over the target so far, in one scale. */
function matrixPart(found, { shape, values }, chosen, { state, set }) {
  const rowLabels = found.numbers.map((place) => label(found.output[place]));
  const scale = scaleOf(values, state.method);
  const width = CELL.readable * Math.max(found.source.length, found.read.length);
  const map = (name, start, pieces) => {
    const part = new Float32Array(shape[0] * pieces.length);
    for (let row = 0; row < shape[0]; row++) {
      const first = row * shape[1] + start;
      part.set(values.subarray(first, first + pieces.length), row * pieces.length);
    }
    return heatMap({
      id: `analyse-${name}`,
      title: say(`analyse.${name}`),
      values: part,
      rows: shape[0],
      columns: pieces.length,
      rowLabels,
      columnLabels: pieces.map(label),
      cell: width <= roomFor(1, rowLabels) ? CELL.readable : CELL.small,
      scale,
      marked: found.numbers.indexOf(chosen),
      pick: (row) => set({ step: found.numbers[row] }),
    });
  };
  const maps = [
    found.source.length ? map("source", 0, found.source) : null,
    found.read.length ? map("read", found.source.length, found.read) : null,
  ];
  const isPair = width <= roomFor(2, rowLabels);
  return section(say("analyse.matrix"), html("div", { class: isPair ? "pair" : null }, maps));
}

async function attributionsPicture(context) {
  const { state, ask, pair, count } = context;
  const controls = methodControls(context, pair, count);
  const found = await attempt(ask("attributions", requestOf(state, pair, count)));
  if (found instanceof Error) return { controls, parts: [faultNote(found)] };
  const scores = tensor(found.scores);
  const chosen = chosenPiece(state, found.output.length);
  const row = Math.max(0, found.numbers.indexOf(chosen));
  const columns = scores.shape[1];
  const values = scores.values.subarray(row * columns, (row + 1) * columns);
  return {
    controls,
    parts: [
      small(say(`analyse.about.${state.method}`)),
      LOCAL.includes(state.method) ? html("p", { class: "note", id: "saturated" }, say("analyse.saturated")) : null,
      sentencePart(found, row, values, context),
      scores.shape[0] > 1 ? matrixPart(found, scores, chosen, context) : null,
    ],
  };
}

// Name in the address -> what draws it.
const PICTURES = {
  attributions: attributionsPicture,
  ranks: ranksPicture,
  neurons: neuronsPicture,
};

/** A state with choices that there are. */
function fitting(state) {
  const among = (value, all) => (all.includes(value) ? value : all[0]);
  return {
    ...state,
    analysis: Object.hasOwn(PICTURES, state.analysis) ? state.analysis : "attributions",
    method: among(state.method, METHODS),
    baseline: among(state.baseline, BASELINES),
    rows: among(state.rows, ROWS),
    steps: STEPS.includes(state.steps) ? state.steps : "256",
  };
}

export async function analyseView(context) {
  const { set, translation } = context;
  const state = fitting(context.state);
  const pair = pairRequest(state, translation);
  const count = pair.target_ids.length || translation.hypotheses[0].steps.length;
  const shown = { ...context, state, pair, count };
  const { controls, parts } = await PICTURES[state.analysis](shown);
  const options = Object.keys(PICTURES).map((name) => [name, say(`analyse.picture.${name}`)]);
  const change = (analysis) => set({ analysis });
  return html("div", {}, [
    html("div", { class: "controls" }, [
      choice(say("analyse.picture"), state.analysis, options, change, "analysis"),
      controls,
    ]),
    parts,
  ]);
}
