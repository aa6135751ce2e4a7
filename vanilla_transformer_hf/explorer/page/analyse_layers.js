// Analyse, layer by layer: the rank of what comes out at the end, and the neurons that fire most.

import { holds, tensor } from "./api.js";
import { readableOn, sequential } from "./colors.js";
import { checkbox, choice, html, number, percent, row, scroller, section, small, table } from "./dom.js";
import { attempt, faultNote } from "./faults.js";
import { heatMap, roomFor } from "./heat_map.js";
import { label } from "./pieces.js";
import { say } from "./texts.js";
import { rowNames } from "./view_walk.js";

const TOPS = [5, 10, 20, 50];
const MOST_PLACES = 3; // of a neuron
const CELL = { readable: 46, small: 16 };

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

export async function ranksPicture({ ask, pair }) {
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

function neuronTable(found, piece, names, { state }) {
  const { shape, values } = tensor(found.activations);
  const keys = ["analyse.neuron", "analyse.activation", state.fires && "analyse.fires_at"].filter(Boolean);
  const rows = found.neurons.map((neuron, at) => {
    const own = values.subarray(at * shape[1], (at + 1) * shape[1]);
    const places = state.fires ? html("td", { dir: "auto" }, placesOf(own, names)) : [];
    return row({}, String(neuron), number(own[piece]), places);
  });
  const neurons = table(
    { class: "numbers" },
    keys.map((key) => say(key)),
    rows,
  );
  return scroller(say("analyse.picture.neurons"), { id: "neurons" }, neurons);
}

function firingMap(found, names) {
  const { shape, values } = tensor(found.activations);
  const rowLabels = found.neurons.map(String);
  const fits = shape[1] * CELL.readable <= roomFor(1, rowLabels);
  return heatMap({
    id: "firing",
    title: say("analyse.fires_map"),
    values,
    rows: shape[0],
    columns: shape[1],
    rowLabels,
    columnLabels: names,
    cell: fits ? CELL.readable : CELL.small,
  });
}

/** The controls; `names` are the tokens that can be chosen. */
function neuronControls({ state, set, model }, asked, names) {
  const { stack, layer } = asked;
  const field = stack === "encoder" ? "token" : "step";
  const stacks = ["encoder", "decoder"].filter((one) => one in model.layers);
  const options = (name, values, text = String) =>
    values.map((value) => [value, text(value), !holds("neurons", { ...asked, [name]: value })]);
  const layers = Array.from({ length: model.layers[stack] }, (_, at) => at);
  const pieces = options("piece", [...names.keys()], (at) => `${at}: ${names[at]}`);
  const setStack = (part) => set({ part, layer: -1 });
  const setLayer = (value) => set({ part: stack, layer: Number(value) });
  const named = stacks.map((one) => [one, say(`part.${one}`)]);
  return [
    stacks.length > 1 ? choice(say("analyse.stack"), stack, named, setStack, "stack") : null,
    choice(say("analyse.layer"), layer, options("layer", layers), setLayer, "layer"),
    names.length
      ? choice(say("analyse.token"), asked.piece, pieces, (value) => set({ [field]: Number(value) }), "piece")
      : null,
    choice(say("analyse.top"), asked.top, options("top", TOPS), (top) => set({ top }), "top"),
    checkbox(say("analyse.fires"), state.fires, (fires) => set({ fires })),
  ];
}

export async function neuronsPicture(context) {
  const { state, ask, model, pair } = context;
  const top = TOPS.includes(Number(state.top)) ? Number(state.top) : 10;
  const asked = { ...pair, ...chosenLayer(state, model), top };
  const found = await attempt(ask("neurons", asked));
  if (found instanceof Error) {
    return { controls: neuronControls(context, asked, []), parts: [faultNote(found)] };
  }
  const names = rowNames(found.pieces, tensor(found.activations).shape[1]);
  const title = say("analyse.neurons_of", { token: names[asked.piece], layer: asked.layer });
  const about = say("analyse.about.neurons", { width: found.width });
  return {
    controls: neuronControls(context, asked, names),
    parts: [
      section(
        title,
        small(about),
        neuronTable(found, asked.piece, names, context),
        state.fires ? firingMap(found, names) : null,
      ),
    ],
  };
}
