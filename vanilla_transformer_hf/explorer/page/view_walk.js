// The walk: the paper's figure 1, from the source to the probabilities. Every box opens to its
// tensor. Below are the length of the residual stream and the logit lens.

import { tensor } from "./api.js";
import { lineChart } from "./chart.js";
import { readableOn, sequential } from "./colors.js";
import { attempt, button, checkbox, faultNote, html, label, number, percent, row, scroller, section } from "./dom.js";
import { small, table } from "./dom.js";
import { figure, orderOf } from "./figure.js";
import { heatMap } from "./heat_map.js";
import { pictureButtons } from "./keep.js";
import { pairRequest } from "./state.js";
import { hasText, say } from "./texts.js";

/** The rows of a tensor: tokens, or groups of them where an encoder halves its sequence. */
export function rowNames(pieces, rows) {
  let names = pieces.map(label);
  while (names.length > rows) {
    const pairs = Array.from({ length: Math.floor(names.length / 2) + 1 }, (_, at) =>
      names.slice(2 * at, 2 * at + 2).join(" + "),
    );
    names = pairs.map((name) => name || "–");
  }
  return names;
}

function boxFacts(box) {
  const names = ["shape", "mean", "deviation", "least", "most", "before", "after"].filter((one) => box[one] !== null);
  const facts = names.map((name) => {
    const value = name === "shape" ? box.shape.join(" × ") : number(box[name]);
    return html("div", {}, html("dt", {}, say(`fact.${name}`)), html("dd", {}, value));
  });
  return html("dl", { class: "facts" }, facts);
}

/** What a tensor is, by its name. */
export function boxTitle({ name, layer, formula }, model) {
  const [side, ...rest] = name.split(".");
  if (layer === null) {
    const what = rest[0] ?? side;
    const isSegments = what === "scaled" && !formula.includes("√d_model");
    return say(`box.${isSegments ? "segments" : what}`, { side: hasText(`part.${side}`) ? say(`part.${side}`) : "" });
  }
  const [, sublayer, around] = rest;
  const key = around === "stream" && model.stacks[side].norm === "post" ? "add_norm" : around;
  return key ? say(`box.${key}_of`, { name: say(`box.${sublayer}`) }) : say(`box.${sublayer}`);
}

/** The title with the layer. */
function fullTitle(box, model) {
  const name = boxTitle(box, model);
  return box.layer === null ? name : say("box.of_layer", { name, layer: box.layer });
}

/** All values of a box; an error takes their place. */
async function boxValues({ state, ask, model, translation }, found, box) {
  const answer = await attempt(ask("tensor", { ...pairRequest(state, translation), box: box.name }));
  if (answer instanceof Error) return faultNote(answer);
  const { shape, values } = tensor(answer);
  const pieces = box.name.startsWith("encoder") || !found.read.length ? found.source : found.read;
  return heatMap({
    title: fullTitle(box, model),
    values,
    columns: shape[1],
    rowLabels: rowNames(pieces, shape[0]),
    cell: Math.max(3, Math.min(16, Math.floor(480 / shape[1]))),
    scale: box.name === "probabilities" ? sequential(1) : undefined,
  });
}

/** The box that is open, beside the figure: its formula, its statistics, all of its values. */
async function opened(context, found) {
  const { state, set, model } = context;
  const box = found.boxes.find((one) => one.name === state.box);
  if (!box) {
    const help = html("p", { class: "note" }, say("figure.help"));
    return html("aside", { class: "beside", id: "beside" }, help, streamAndLens(found, model));
  }
  const order = orderOf(found);
  const at = order.indexOf(box.name);
  const step = (text, place, id) =>
    button(say(text), () => set({ box: order[place] }), { id, disabled: !(place in order) });
  return html("aside", { class: "beside open", id: "beside", "aria-labelledby": "opened-title" }, [
    html("p", { class: "beside-bar" }, [
      step("figure.previous", at - 1, "previous-box"),
      step("figure.next", at + 1, "next-box"),
      button(say("figure.close"), () => set({ box: "" }), { id: "close-box" }),
    ]),
    html("div", { id: "opened" }, [
      html("h3", { id: "opened-title" }, fullTitle(box, model)),
      html("p", {}, html("code", {}, box.formula)),
      boxFacts(box),
      await boxValues(context, found, box),
    ]),
  ]);
}

/** Show a box and its tensor; the same box again closes it. */
async function open(name, { state, set }) {
  await set({ box: state.box === name ? "" : name });
  const box = document.getElementById(`box-${name}`);
  // In a narrow window the tensor covers the lower half.
  const isNarrow = matchMedia("(max-width: 700px)").matches;
  box?.scrollIntoView({ block: isNarrow ? "start" : "nearest" });
  box?.focus({ preventScroll: true });
}

/** Mean length of the residual stream after each sublayer, as a line for each stack. */
function normChart(boxes, model) {
  const stacks = {};
  for (const box of boxes) {
    if (box.before === null) continue;
    const stack = box.name.split(".")[0];
    const line = (stacks[stack] ??= [{ value: box.before, name: say("stream.input") }]);
    line.push({ value: box.after, name: fullTitle(box, model) });
  }
  const colors = { encoder: "var(--above)", decoder: "var(--below)" };
  const series = Object.entries(stacks).map(([side, line]) => {
    const stack = say(`part.${side}`);
    const text = ({ name, value }) => say("stream.point", { stack, name, value: number(value) });
    return {
      name: stack,
      color: colors[side],
      points: line.map((one, at) => ({ at, value: one.value, text: text(one) })),
    };
  });
  return lineChart({
    title: say("stream.label"),
    file: "residual-norms",
    width: 640,
    most: Math.max(...series.flatMap(({ points }) => points.map((one) => one.value))) * 1.08,
    farthest: Math.max(...series.map(({ points }) => points.length)) - 1,
    series,
    ends: [say("stream.input"), say("stream.order")],
  });
}

/** What every layer would predict: the last at the top, as the data flows upwards. */
function lensTable(found) {
  const scale = sequential(1);
  const cell = (best) => {
    const color = scale(best[0].probability);
    const all = best.map((one) => `${label(one)} ${percent(one.probability)}`).join("\n");
    return html("td", { title: all, style: `background:${color};color:${readableOn(color)}` }, [
      html("span", { class: "piece" }, label(best[0])),
      html("span", { class: "small" }, percent(best[0].probability)),
    ]);
  };
  const nameOf = (layer) => say("figure.layer", { number: layer });
  const rows = found.lenses.toReversed().map(({ layer, steps }) => row({}, nameOf(layer), steps.map(cell)));
  const heads = (found.predicted.length ? found.predicted : found.source).map(label);
  return scroller(say("lens.label"), {}, table({ class: "lens" }, ["", ...heads], rows));
}

/** What follows from all layers together: beside the figure, or below it while a box is open. */
function streamAndLens(found, model) {
  const about = say(found.predicted.length ? "lens.about_predicted" : "lens.about_text");
  return html("div", {}, [
    section(say("stream.title"), normChart(found.boxes, model)),
    found.lenses.length ? section(say("lens.title"), small(about), lensTable(found)) : null,
  ]);
}

export async function walkView(context) {
  const { state, set, ask, model, translation } = context;
  const found = await ask("walk", pairRequest(state, translation));
  const picture = figure({ found, model, state, open: (name) => open(name, context) });
  const isPair = model.kind === "translation";
  return [
    section(
      say(isPair ? "walk.title" : "walk.title_text"),
      html("p", { class: "controls" }, [
        checkbox(say("figure.all"), state.unfolded, (unfolded) => set({ unfolded })),
        pictureButtons("figure-1", picture),
      ]),
      html("div", { class: "figure-walk" }, [
        html("div", { class: "figure-sheet" }, picture),
        await opened(context, found),
      ]),
    ),
    found.boxes.some((box) => box.name === state.box) ? streamAndLens(found, model) : null,
  ].filter(Boolean);
}
