// The walk: the paper's figure 1, from the source to the probabilities. Every box opens to its
// tensor. Below are the length of the residual stream and the logit lens.

import { AnswerError, tensor } from "./api.js";
import { sequential, readableOn } from "./colors.js";
import { button, checkbox, html, number, percent, scroller, section, svg } from "./dom.js";
import { figure, orderOf } from "./figure.js";
import { heatMap } from "./heat_map.js";
import { pictureButtons } from "./keep.js";
import { label } from "./pieces.js";
import { pairRequest } from "./state.js";
import { languageOf, textsOf } from "./texts.js";

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
  const facts = [
    ["shape", box.shape.join(" × ")],
    ["mean", number(box.mean)],
    ["deviation", number(box.deviation)],
    ["least", number(box.least)],
    ["most", number(box.most)],
  ];
  if (box.before !== null) {
    facts.push(["residual before", number(box.before)], ["residual after", number(box.after)]);
  }
  return html(
    "dl",
    { class: "facts" },
    facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))),
  );
}

/** All values of a box; an error takes their place. */
async function boxValues({ state, ask, translation }, found, box) {
  let answer;
  try {
    answer = await ask("tensor", { ...pairRequest(state, translation), box: box.name });
  } catch (error) {
    if (!(error instanceof AnswerError)) throw error;
    return html("p", { class: "error", role: "alert" }, error.message);
  }
  const { shape, values } = tensor(answer);
  const pieces = box.name.startsWith("encoder") || !found.read.length ? found.source : found.read;
  return heatMap({
    title: titleOf(box),
    values,
    rows: shape[0],
    columns: shape[1],
    rowLabels: rowNames(pieces, shape[0]),
    cell: Math.max(3, Math.min(16, Math.floor(480 / shape[1]))),
    scale: box.name === "probabilities" ? sequential(1) : undefined,
  });
}

function titleOf(box) {
  return `${box.title}${box.layer === null ? "" : ` of layer ${box.layer}`}`;
}

/** The box that is open, beside the figure: its formula, its statistics, all of its values. */
async function opened(context, found, say) {
  const { state, set } = context;
  const box = found.boxes.find((one) => one.name === state.box);
  if (!box) {
    const help = html("p", { class: "note" }, say("figure.help"));
    return html("aside", { class: "beside", id: "beside" }, help, streamAndLens(found));
  }
  const order = orderOf(found);
  const at = order.indexOf(box.name);
  const step = (text, place, id) =>
    button(say(text), () => set({ box: order[place] }), { id, disabled: !(place in order) });
  return html(
    "aside",
    { class: "beside open", id: "beside", "aria-labelledby": "opened-title" },
    html(
      "p",
      { class: "beside-bar" },
      step("figure.previous", at - 1, "previous-box"),
      step("figure.next", at + 1, "next-box"),
      button(say("figure.close"), () => set({ box: "" }), { id: "close-box" }),
    ),
    html(
      "div",
      { id: "opened" },
      html("h3", { id: "opened-title" }, titleOf(box)),
      html("p", {}, html("code", {}, box.formula)),
      boxFacts(box),
      await boxValues(context, found, box),
    ),
  );
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
function normChart(boxes) {
  const width = 640,
    height = 190,
    left = 44,
    bottom = 22;
  const stacks = { encoder: [], decoder: [] };
  for (const box of boxes) {
    if (box.before === null) continue;
    const line = stacks[box.name.split(".")[0]];
    if (!line.length) line.push({ value: box.before, name: "input" });
    line.push({ value: box.after, name: `${box.title} of layer ${box.layer}` });
  }
  const all = Object.values(stacks).flat(),
    most = Math.max(...all.map((one) => one.value)) * 1.08;
  for (const [name, line] of Object.entries(stacks)) if (!line.length) delete stacks[name];
  const longest = Math.max(...Object.values(stacks).map((line) => line.length)) - 1;
  const x = (place) => left + (place * (width - left - 14)) / Math.max(1, longest),
    y = (value) => 8 + (1 - value / most) * (height - bottom - 8);
  const lines = Object.entries(stacks).map(([name, line]) => [
    svg("path", {
      class: `series ${name}`,
      d: line.map((one, place) => `${place ? "L" : "M"}${x(place)},${y(one.value)}`).join(""),
    }),
    line.map((one, place) =>
      svg(
        "circle",
        { class: `series ${name}`, cx: x(place), cy: y(one.value), r: 3.5 },
        svg("title", {}, `${name}, after ${one.name}: ${number(one.value)}`),
      ),
    ),
  ]);
  const ticks = [0, 0.5, 1].map((share) => [
    svg("line", {
      class: "tick",
      x1: left,
      x2: width - 10,
      y1: y(share * most),
      y2: y(share * most),
    }),
    svg(
      "text",
      { class: "value", x: left - 6, y: y(share * most) + 4, "text-anchor": "end" },
      number(share * most, 3),
    ),
  ]);
  const picture = svg(
    "svg",
    {
      width,
      height,
      class: "chart",
      role: "img",
      "aria-label": "length of the residual stream after each sublayer",
    },
    ticks,
    lines,
    svg("text", { class: "value", x: left, y: height - 5 }, "input"),
    svg("text", { class: "value", x: width - 10, y: height - 5, "text-anchor": "end" }, "sublayers, in order"),
  );
  const legend = html(
    "p",
    { class: "small legend" },
    Object.keys(stacks).map((name) => html("span", { class: `key ${name}` }, name)),
    pictureButtons("residual-norms", () => picture),
  );
  return html("div", {}, legend, scroller("length of the residual stream", {}, picture));
}

/** What every layer would predict: the last at the top, as the data flows upwards. */
function lensTable(found) {
  const scale = sequential(1);
  const rows = found.lenses.toReversed().map((lens) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, `layer ${lens.layer}`),
      lens.steps.map((best) => {
        const color = scale(best[0].probability);
        const all = best.map((one) => `${label(one)} ${percent(one.probability)}`).join("\n");
        return html(
          "td",
          { title: all, style: `background:${color};color:${readableOn(color)}` },
          html("span", { class: "piece" }, label(best[0])),
          html("span", { class: "small" }, percent(best[0].probability)),
        );
      }),
    ),
  );
  const heads = [
    html("td"),
    ...(found.predicted.length ? found.predicted : found.source).map((piece) =>
      html("th", { scope: "col" }, label(piece)),
    ),
  ];
  return scroller(
    "logit lens",
    {},
    html("table", { class: "lens" }, html("thead", {}, html("tr", {}, heads)), html("tbody", {}, rows)),
  );
}

/** What follows from all layers together: beside the figure, or below it while a box is open. */
function streamAndLens(found) {
  const parts = [section("Length of the residual stream", normChart(found.boxes))];
  if (found.lenses.length) {
    const columns = found.predicted.length ? "what the model predicts" : "the text";
    const output = "The output of each layer through the final norm and the output matrix";
    const about = `${output}. Columns: ${columns}.`;
    const title = "What each layer would predict (logit lens)";
    parts.push(section(title, html("p", { class: "small" }, about), lensTable(found)));
  }
  return html("div", { lang: "en" }, parts);
}

export async function walkView(context) {
  const { state, set, ask, model, translation } = context;
  const found = await ask("walk", pairRequest(state, translation));
  const say = textsOf(state);
  const picture = figure({ found, model, state, say, open: (name) => open(name, context) });
  const isPair = model.kind === "translation";
  return [
    section(
      isPair ? "From the source to the probabilities" : "From the text to the probabilities",
      html(
        "p",
        { class: "controls" },
        checkbox(say("figure.all"), state.unfolded, (unfolded) => set({ unfolded })),
        pictureButtons("figure-1", () => picture),
      ),
      html(
        "div",
        { class: "figure-walk", lang: languageOf(state) },
        html("div", { class: "figure-sheet" }, picture),
        await opened(context, found, say),
      ),
    ),
    found.boxes.some((box) => box.name === state.box) ? streamAndLens(found) : null,
  ].filter(Boolean);
}
