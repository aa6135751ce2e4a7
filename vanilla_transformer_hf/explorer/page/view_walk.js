// The walk: the five stages from the source to the probabilities. Every box opens to its tensor.

import { tensor } from "./api.js";
import { sequential, readableOn } from "./colors.js";
import { html, number, percent, section, svg } from "./dom.js";
import { heatMap } from "./heat_map.js";
import { pictureButtons } from "./keep.js";
import { label } from "./pieces.js";
import { pairRequest } from "./state.js";

const STAGES = {
  1: "1 · Source embedding and positions",
  2: "2 · Encoder layers",
  3: "3 · Shifted target",
  4: "4 · Decoder layers",
  5: "5 · Logits and softmax",
};

async function open(box, state, set) {
  await set({ box: state.box === box.name ? "" : box.name });
  document.getElementById("opened")?.scrollIntoView({ block: "nearest" });
}

function boxButton(box, state, set) {
  const change =
    box.before === null
      ? null
      : html("span", { class: "small" }, `‖x‖ ${number(box.before, 3)} → ${number(box.after, 3)}`);
  return html(
    "button",
    {
      type: "button",
      class: "box",
      id: `box-${box.name}`,
      "aria-pressed": String(state.box === box.name),
      click: () => open(box, state, set),
    },
    html("strong", {}, box.layer === null ? box.title : `${box.layer} · ${box.title}`),
    html("span", { class: "shape" }, `[${box.shape.join(" × ")}]`),
    html("span", { class: "small" }, `σ ${number(box.deviation, 3)}`),
    change,
  );
}

function stage(boxes, number, titles, state, set) {
  if (!boxes.some((box) => box.stage === number)) return null;
  return html(
    "div",
    { class: `stage stage-${number}` },
    html("h3", {}, titles[number]),
    boxes.filter((box) => box.stage === number).map((box) => boxButton(box, state, set)),
  );
}

/** A box that is open: its formula, its statistics and all of its values. */
async function opened({ state, ask, translation }, found) {
  const box = found.boxes.find((one) => one.name === state.box);
  if (!box) return html("p", { class: "note" }, "Choose a box to see its tensor.");
  const { shape, values } = tensor(
    await ask("tensor", { ...pairRequest(state, translation), box: box.name }),
  );
  const pieces = box.name.startsWith("encoder") || !found.read.length ? found.source : found.read;
  const facts = [
    ["shape", box.shape.join(" × ")],
    ["mean", number(box.mean)],
    ["deviation", number(box.deviation)],
    ["least", number(box.least)],
    ["most", number(box.most)],
  ];
  if (box.before !== null)
    facts.push(["residual before", number(box.before)], ["residual after", number(box.after)]);
  return html(
    "div",
    { id: "opened" },
    html("p", {}, html("code", {}, box.formula)),
    html(
      "dl",
      { class: "facts" },
      facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))),
    ),
    heatMap({
      title: `${box.title}${box.layer === null ? "" : ` of layer ${box.layer}`}`,
      values,
      rows: shape[0],
      columns: shape[1],
      rowLabels: pieces.map(label),
      cell: Math.max(3, Math.min(16, Math.floor(1000 / shape[1]))),
      scale: box.name === "probabilities" ? sequential(1) : undefined,
    }),
  );
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
    svg(
      "text",
      { class: "value", x: width - 10, y: height - 5, "text-anchor": "end" },
      "sublayers, in order",
    ),
  );
  const legend = html(
    "p",
    { class: "small legend" },
    Object.keys(stacks).map((name) => html("span", { class: `key ${name}` }, name)),
    pictureButtons("residual-norms", () => picture),
  );
  return html("div", {}, legend, html("div", { class: "scroll" }, picture));
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
  return html(
    "div",
    { class: "scroll", tabindex: 0, "aria-label": "logit lens, scrolls" },
    html(
      "table",
      { class: "lens" },
      html("thead", {}, html("tr", {}, heads)),
      html("tbody", {}, rows),
    ),
  );
}

export async function walkView(context) {
  const { state, set, ask, model, translation } = context;
  const found = await ask("walk", pairRequest(state, translation));
  const titles =
    model.kind === "translation"
      ? STAGES
      : {
          ...STAGES,
          1: "Text and positions",
          2: "Encoder layers",
          3: "Text and positions",
          4: "Decoder layers",
          5: "Logits and softmax",
        };
  const column = (...numbers) => {
    const stages = numbers
      .map((one) => stage(found.boxes, one, titles, state, set))
      .filter(Boolean);
    return stages.length ? html("div", { class: "column" }, stages) : null;
  };
  return [
    section(
      model.kind === "translation"
        ? "From the source to the probabilities"
        : "From the text to the probabilities",
      html(
        "p",
        { class: "small" },
        "σ is the deviation of the values, ‖x‖ the mean length of the residual stream before and after a sublayer.",
      ),
      html("div", { class: "walk" }, column(1, 2), column(3, 4), column(5)),
    ),
    section("The tensor", await opened(context, found)),
    section("Length of the residual stream", normChart(found.boxes)),
    found.lenses.length === 0
      ? null
      : section(
          "What each layer would predict (logit lens)",
          html(
            "p",
            { class: "small" },
            `The output of each layer through the final norm and the output matrix. Columns: ${found.predicted.length ? "what the model predicts" : "the text"}.`,
          ),
          lensTable(found),
        ),
  ].filter(Boolean);
}
