// Analyse: what a token of the output depends on, its ranks by layer, and the neurons that fire most.

import { holds, tensor } from "./api.js";
import { diverging, readableOn, sequential } from "./colors.js";
import { attempt, button, choice, faultNote, html, label, number, offered, percent, range } from "./dom.js";
import { roving, row, scroller, section, small, table } from "./dom.js";
import { heatMap, roomFor } from "./heat_map.js";
import { sourceMap } from "./source_map.js";
import { pairRequest } from "./state.js";
import { say, sentences } from "./texts.js";
import { rowNames } from "./view_walk.js";

const METHODS = ["left_out", "gradient_x_input", "gradient", "integrated_gradients", "rollout"];
const LOCAL = ["gradient_x_input", "gradient"]; // what a small change does
const UNSIGNED = ["gradient", "rollout"];
const BASELINES = ["zero", "mean"];
const STEPS = ["16", "32", "64", "128", "256", "512", "1024"];
const ROWS = ["all", "chosen"];
const MOST_MISSED = 0.05; // of the difference of the logits
const CELL = { readable: 46, small: 16 };

/** Pixels of a cell of a map as wide as the view: its numbers can be read, if they fit. */
function cellFor(columns, rowLabels) {
  return CELL.readable * columns <= roomFor(1, rowLabels) ? CELL.readable : CELL.small;
}

/** The number of the chosen token of the output. */
function chosenPiece(state, count) {
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
    offered(values, text, (value) => holds("attributions", requestOf({ ...state, [name]: value }, pair, count)));
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
    button(label(piece), () => set({ step: place }), { id: `output-${place}`, "aria-pressed": place === chosen }),
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
  const wider = Math.max(found.source.length, found.read.length);
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
      rowLabels,
      columnLabels: pieces.map(label),
      cell: cellFor(wider, rowLabels),
      scale,
      marked: found.numbers.indexOf(chosen),
      pick: (row) => set({ step: found.numbers[row] }),
    });
  };
  const maps = [
    found.source.length ? map("source", 0, found.source) : null,
    found.read.length ? map("read", found.source.length, found.read) : null,
  ];
  const isPair = CELL.readable * wider <= roomFor(2, rowLabels);
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
const PICTURES = { attributions: attributionsPicture, ranks: ranksPicture, neurons: neuronsPicture };

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
  const options = offered(Object.keys(PICTURES), (name) => say(`analyse.picture.${name}`));
  const change = (analysis) => set({ analysis });
  return html("div", {}, [
    html("div", { class: "controls" }, [
      choice(say("analyse.picture"), state.analysis, options, change, "analysis"),
      controls,
    ]),
    parts,
  ]);
}

// ---------------------------------------- layer by layer: the ranks of what comes out, and the neurons that fire most

const TOPS = [5, 10, 20, 50];
const MOST_PLACES = 3; // of a neuron

/** A row for each layer, the last at the top, as the data flows upwards. */
export function rankTable(found, id = "ranks", name = say("analyse.picture.ranks")) {
  const [ranks, probabilities] = [found.ranks, found.probabilities].map((one) => tensor(one).values);
  const count = found.output.length;
  const scale = sequential(1);
  const cell = (at) => {
    const color = scale(probabilities[at]);
    return html("td", { style: `background:${color};color:${readableOn(color)}` }, [
      html("span", {}, String(ranks[at] + 1)),
      html("span", { class: "small" }, percent(probabilities[at])),
    ]);
  };
  const rows = found.layers.map((layer, at) => {
    const cells = found.output.map((_, place) => cell(at * count + place));
    return row({}, say("figure.layer", { number: layer }), cells);
  });
  const ranked = table({ class: "lens" }, ["", ...found.output.map(label)], rows.toReversed());
  return scroller(name, { id }, ranked);
}

async function ranksPicture({ ask, pair }) {
  const found = await attempt(ask("ranks", pair));
  if (found instanceof Error) return { controls: null, parts: [faultNote(found)] };
  const about = say(found.norm ? "analyse.about.ranks" : "analyse.about.ranks_without", { norm: found.norm });
  return { controls: null, parts: [section(say("analyse.picture.ranks"), small(about), rankTable(found))] };
}

/** The stack, the layer and the token whose neurons are shown. */
function chosenLayer(state, { layers }) {
  const stacks = ["encoder", "decoder"].filter((stack) => stack in layers);
  const stack = stacks.includes(state.part) ? state.part : stacks.at(-1);
  const last = layers[stack] - 1;
  const layer = Math.min(state.layer < 0 ? last : state.layer, last);
  const piece = Math.max(0, stack === "encoder" ? state.token : state.step);
  return { stack, layer, piece };
}

/** Where a neuron fires most: tokens, each with its number. */
function placesOf(values, names) {
  const order = Array.from(values.keys()).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  const shown = order.slice(0, MOST_PLACES).filter((place) => values[place] !== 0);
  return shown.map((place) => `${names[place]} ${number(values[place], 3)}`).join(", ");
}

function neuronTable(found, piece, names) {
  const { shape, values } = tensor(found.activations);
  const keys = ["analyse.neuron", "analyse.activation", "analyse.fires_at", "analyse.writes"];
  const rows = found.neurons.map((neuron, at) => {
    const own = values.subarray(at * shape[1], (at + 1) * shape[1]);
    const texts = [placesOf(own, names), (found.writes[at] ?? []).map(label).join(", ")];
    return row({}, String(neuron), number(own[piece]), ...texts.map((text) => html("td", { dir: "auto" }, text)));
  });
  const neurons = table(
    { class: "numbers" },
    keys.map((key) => say(key)),
    rows,
  );
  return scroller(say("analyse.picture.neurons"), { id: "neurons" }, neurons);
}

function firingMap(found, names) {
  const { values } = tensor(found.activations);
  const rowLabels = found.neurons.map(String);
  return heatMap({
    id: "firing",
    title: say("analyse.fires_map"),
    values,
    rowLabels,
    columnLabels: names,
    cell: cellFor(names.length, rowLabels),
  });
}

/** The controls; `names` are the tokens that can be chosen. */
function neuronControls({ state, set, model }, asked, names) {
  const { stack, layer } = asked;
  const field = stack === "encoder" ? "token" : "step";
  const stacks = ["encoder", "decoder"].filter((one) => one in model.layers);
  const options = (name, values, text) =>
    offered(values, text, (value) => holds("neurons", { ...asked, [name]: value }));
  const layers = range(model.layers[stack]);
  const pieces = options("piece", [...names.keys()], (at) => `${at}: ${names[at]}`);
  const setStack = (part) => set({ part, layer: -1 });
  const setLayer = (value) => set({ part: stack, layer: Number(value) });
  const named = offered(stacks, (one) => say(`part.${one}`));
  return [
    stacks.length > 1 ? choice(say("analyse.stack"), stack, named, setStack, "stack") : null,
    choice(say("analyse.layer"), layer, options("layer", layers), setLayer, "layer"),
    names.length
      ? choice(say("analyse.token"), asked.piece, pieces, (value) => set({ [field]: Number(value) }), "piece")
      : null,
    choice(say("analyse.top"), asked.top, options("top", TOPS), (top) => set({ top }), "top"),
  ];
}

async function neuronsPicture(context) {
  const { state, ask, model, pair } = context;
  const top = TOPS.includes(Number(state.top)) ? Number(state.top) : 10;
  const asked = { ...pair, ...chosenLayer(state, model), top };
  const found = await attempt(ask("neurons", asked));
  if (found instanceof Error) {
    return { controls: neuronControls(context, asked, []), parts: [faultNote(found)] };
  }
  const names = rowNames(found.pieces, tensor(found.activations).shape[1]);
  const title = say("analyse.neurons_of", { token: names[asked.piece], layer: asked.layer });
  const about = say("analyse.about.neurons", { width: found.width, count: found.neurons.length });
  return {
    controls: neuronControls(context, asked, names),
    parts: [section(title, small(about), neuronTable(found, asked.piece, names), firingMap(found, names))],
  };
}
