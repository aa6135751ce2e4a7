// Translate: settings of the search, every piece with its alternatives, the n-best list, the tree.

import { isOffline } from "./api.js";
import { announce, button, checkbox, choice, html, kept, label, number, numberBox, percent, roving } from "./dom.js";
import { offered, row, section, small, svg, svgButton, table } from "./dom.js";
import { pictureButtons } from "./keep.js";
import { plainSource } from "./source_map.js";
import { numbersOf } from "./state.js";
import { say } from "./texts.js";

const SHOWN_ALTERNATIVES = 5;

/** The boxes for numbers; what is left empty is the model's own setting. */
function boxes({ state, set, model }) {
  return (name, limits, plain = model.settings[name] ?? say("search.auto")) =>
    numberBox(
      name,
      say(`search.${name}`),
      limits,
      // A kept page holds the searches that were looked at.
      { value: state[name], placeholder: plain, disabled: isOffline },
      (value) => set({ [name]: value }),
    );
}

/** The controls of the search. */
export function searchControls(context) {
  const { state, set, can, model } = context;
  const box = boxes(context);
  const own = { type: model.settings.length_penalty_type };
  const typeOf = (kind) => say(`search.type_${kind || "own"}`, own);
  const kinds = offered(["", "power", "gnmt"], typeOf, (kind) => can({ length_penalty_type: kind }));
  const languages = offered(
    ["", ...model.target_langs],
    (one) => one || "–",
    (one) => can({ target_lang: one }),
  );
  const setType = (value) => set({ length_penalty_type: value });
  const setLanguage = (value) => set({ target_lang: value });
  return html("div", { class: "controls" }, [
    box("num_beams", [1, 32, 1]),
    box("length_penalty", [-10, 10, "any"]),
    model.is_ours ? choice(say("search.type"), state.length_penalty_type, kinds, setType, "type") : null,
    box("max_new_tokens", [1, 512, 1]),
    model.target_langs.length ? choice(say("search.to"), state.target_lang, languages, setLanguage, "to") : null,
    samplingControls(context, box),
  ]);
}

/** Draws in place of the search, and what makes their distribution another than the model's. */
function samplingControls({ state }, box) {
  return html("div", { class: "controls sampling", role: "group", "aria-label": say("search.sampling") }, [
    box("draws", [1, 32, 1], say("search.none")),
    state.draws === "" ? null : box("seed", [0, 2 ** 31 - 1, 1], 0),
    box("temperature", [0.01, 100, "any"], 1),
    box("top_k", [0, 1000, 1], say("search.all")),
    box("top_p", [0.01, 1, "any"], 1),
  ]);
}

/** Whether tokens are drawn with other probabilities than the model's. */
function isReshaped(state) {
  return ["temperature", "top_k", "top_p"].some((name) => state[name] !== "");
}

/** A probability, and that of being drawn where it is another. */
function share(one, state) {
  if (!isReshaped(state)) return percent(one.probability);
  return `${percent(one.probability)} → ${one.drawn > 0 ? percent(one.drawn) : say("step.never")}`;
}

/** A step of the decoder: the piece, its probability, and what else was probable. */
function stepCard(step, place, changes, { state, set, can }) {
  const listed = step.alternatives.slice(0, SHOWN_ALTERNATIVES);
  const rows = listed.map((one, rank) => {
    const isChosen = one.id === step.piece.id;
    return html("li", {}, [
      button(
        [html("span", { class: "piece" }, label(one)), " ", html("span", { class: "share" }, share(one, state))],
        () => set(changes(one, place)),
        {
          ...kept(can(changes(one, place)), isChosen ? "alternative chosen" : "alternative"),
          id: `alternative-${place}-${rank}`,
          style: `--share:${(100 * (isReshaped(state) ? one.drawn : one.probability)).toFixed(2)}%`,
          "data-step": place,
        },
      ),
    ]);
  });
  const note = step.given ? say("step.given") : step.rank ? say("step.rank", { rank: step.rank + 1 }) : "";
  return html("li", { class: step.given ? "step given" : "step" }, [
    html("div", { class: "step-head" }, [
      html("strong", { class: "piece" }, label(step.piece)),
      html("span", {}, share(step, state)),
    ]),
    html("div", { class: "small" }, `log p ${number(step.log_probability, 4)}`, note ? ` · ${note}` : ""),
    html("ol", { class: "alternatives" }, rows),
  ]);
}

function nBest({ state, set, translation }) {
  const rows = translation.hypotheses.map((one, place) => {
    const isChosen = state.ids === "" && place === state.hypothesis;
    const radio = html("input", {
      type: "radio",
      name: "hypothesis",
      id: `hypothesis-${place}`,
      checked: isChosen,
      change: () => set({ hypothesis: place, ids: "" }),
      "aria-label": say("best.hypothesis", { number: place + 1 }),
    });
    const text = [one.text || say("output.empty"), one.is_complete ? "" : " …"];
    return row({ class: isChosen ? "chosen" : null }, null, [
      radio,
      html("td", { class: "text" }, html("label", { for: `hypothesis-${place}`, dir: "auto" }, text)),
      [one.score, one.log_probability].map((value) => number(value)),
      String(one.ids.length),
    ]);
  });
  const heads = ["", ...["translation", "score", "log_p", "tokens"].map((name) => say(`best.${name}`))];
  return html("div", { class: "scroll" }, table({ class: "n-best" }, heads, rows));
}

const SIGNS = { "␣": " ", "⏎": "\n", "⇥": "\t" };

/** The text with a piece in place of the mask token with this number. */
function replaceMask(text, mask, number, shown) {
  const parts = text.split(mask);
  const piece = shown.replaceAll(/[␣⏎⇥]/g, (sign) => SIGNS[sign]);
  return `${parts.slice(0, number + 1).join(mask)}${piece}${parts.slice(number + 1).join(mask)}`;
}

/** The tree of the search, or why there is none. */
function treeSection(context) {
  const { state, set, model, translation } = context;
  if (translation.tree) {
    const dead = checkbox(say("tree.show_pruned"), state.dead, (dead) => set({ dead }));
    return section(say("tree.title"), dead, beamTree(context));
  }
  const reason = !model.is_ours ? "not_ours" : state.draws !== "" ? "draws" : "one_beam";
  return section(say("tree.title"), html("p", { class: "note" }, say(`tree.${reason}`)));
}

/** The tokens that were read, or the picture of the file. */
function sourceLine({ state, source, translation }) {
  if (source) return plainSource(source, state.text);
  const chips = translation.source.map((piece) => [
    html("span", { class: piece.special ? "chip special" : "chip" }, label(piece)),
    " ",
  ]);
  return html("p", { class: "pieces" }, html("span", { class: "unseen" }, say("output.source")), chips);
}

export function translateView(context) {
  const { state, set, model, source, translation } = context;
  const chosen = translation.hypotheses[state.hypothesis] ?? translation.hypotheses[0];
  const given = numbersOf(state.prefix).length;
  const isMasked = model.kind === "masked";
  // A language model of gaps gets the piece into its text, the others go on behind it.
  const changes = (one, place) =>
    isMasked
      ? { text: replaceMask(state.text, model.mask, place, one.text) }
      : { prefix: [...chosen.ids.slice(0, place), one.id].join(","), hypothesis: 0, ids: "" };
  const begun = chosen.steps
    .slice(0, given)
    .map((step) => label(step.piece))
    .join(" ");
  const scores = { score: number(chosen.score), log: number(chosen.log_probability) };
  const cards = chosen.steps.map((step, place) => stepCard(step, place, changes, context));
  const steps = { class: isReshaped(state) ? "steps wide" : "steps", "aria-label": say("step.list") };
  return [
    isMasked ? null : searchControls(context),
    section(
      say(source ? "output.recognised" : `output.${model.kind}`),
      html("p", { class: "translation", id: "translation", dir: "auto" }, chosen.text || say("output.empty")),
      small(say(chosen.is_complete ? "output.scores" : "output.scores_cut", scores)),
      sourceLine(context),
      given
        ? html("p", { class: "note", id: "prefix" }, [
            `${say("output.continues", { pieces: begun })} `,
            button(say("output.start_again"), () => set({ prefix: "" }), { id: "start-again" }),
          ])
        : null,
    ),
    section(
      say("step.title"),
      small(say(`step.help_${model.kind}`, { mask: model.mask })),
      isReshaped(state) ? html("p", { class: "small", id: "reshaped" }, say("step.reshaped")) : null,
      roving(html("ol", steps, cards)),
    ),
    translation.hypotheses.length > 1
      ? section(say(state.draws === "" ? "best.title" : "best.draws"), nBest(context))
      : null,
    isMasked ? null : treeSection(context),
  ].filter(Boolean);
}

// --------------------------------------- the tree: a column for each step, a box for each hypothesis, pruned ones too

const COLUMN = 178;
const ROW = 32;
const BOX = { width: 146, height: 24 };
const LETTERS = 13;

/** The row of each node in the column of its step: by its parent's, then by its score. */
function places(tree, isShown) {
  const rows = new Map([[0, 0]]);
  let column = [0];
  let count = 1;
  const children = new Map();
  tree.forEach((node, place) => {
    if (!place || !isShown(place)) return;
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(place);
  });
  while (column.length) {
    column = column.flatMap((node) => children.get(node) ?? []);
    column.forEach((node, row) => rows.set(node, row));
    count = Math.max(count, column.length);
  }
  return { rows, count };
}

function pathOf(tree, node) {
  const ids = [];
  for (let one = node; one > 0; one = tree[one].parent) ids.unshift(tree[one].piece.id);
  return ids;
}

function beamTree({ state, set, can, translation }) {
  const tree = translation.tree;
  const chosen = translation.hypotheses[state.hypothesis] ?? translation.hypotheses[0];
  const ids = state.ids || chosen.ids.join(",");
  const onPath = new Set();
  tree.forEach((node, place) => {
    if (pathOf(tree, place).join(",") !== ids) return;
    for (let one = place; one >= 0; one = tree[one].parent) onPath.add(one);
  });
  const isShown = (node) => state.dead || tree[node].state !== "dead" || onPath.has(node);
  const { rows, count } = places(tree, isShown);
  const steps = Math.max(...[...rows.keys()].map((node) => tree[node].step));
  const x = (node) => 8 + tree[node].step * COLUMN;
  const y = (node) => 8 + rows.get(node) * ROW;
  const details = html("div", { class: "details" }, say("tree.help"));

  function choose(node) {
    const one = tree[node];
    const ids = pathOf(tree, node).join(",");
    const numbers = { log: number(one.log_probability), score: number(one.score), state: say(`tree.${one.state}`) };
    const text = say("tree.node", { piece: label(one.piece), ...numbers });
    const further = { prefix: ids, hypothesis: 0, ids: "" };
    announce(text);
    details.replaceChildren(
      html("span", {}, text),
      button(say("tree.continue"), () => set(further), kept(can(further))),
      button(say("tree.attention"), () => set({ ids, view: "attention" })),
    );
  }

  const lines = [];
  const boxes = [];
  for (const node of rows.keys()) {
    const one = tree[node];
    const kind = onPath.has(node) ? "best" : one.state;
    if (node) {
      const [fromX, fromY] = [x(one.parent) + BOX.width, y(one.parent) + BOX.height / 2];
      const toY = y(node) + BOX.height / 2;
      const middle = (fromX + x(node)) / 2;
      lines.push(
        svg("path", {
          class: `edge ${kind}`,
          d: `M${fromX},${fromY}C${middle},${fromY} ${middle},${toY} ${x(node)},${toY}`,
        }),
      );
    }
    const name = label(one.piece);
    const shownName = name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name;
    const seen = node ? number(one.log_probability, 3) : "";
    boxes.push(
      svgButton(
        {
          class: `node ${kind}`,
          id: `node-${node}`,
          transform: `translate(${x(node)},${y(node)})`,
          // What is seen comes first: who speaks to the page says that.
          "aria-label": say("tree.box", { seen: `${shownName} ${seen}`, name, state: say(`tree.${one.state}`) }),
        },
        () => node && choose(node),
        svg("rect", { width: BOX.width, height: BOX.height, rx: 4 }),
        svg("text", { x: 7, y: 16 }, shownName),
        node ? svg("text", { class: "value", x: BOX.width - 6, y: 16, "text-anchor": "end" }, seen) : null,
        svg("title", {}, `${name}: ${number(one.log_probability)}`),
      ),
    );
  }
  const picture = svg(
    "svg",
    {
      width: 16 + steps * COLUMN + BOX.width,
      height: 16 + count * ROW,
      class: "tree",
      role: "group",
      "aria-label": say("tree.label"),
    },
    lines,
    boxes,
  );
  const legend = html("p", { class: "small legend" }, [
    ["best", "running", "finished", "dead"].map((kind) => html("span", { class: `key ${kind}` }, say(`tree.${kind}`))),
    ` ${say("tree.numbers")} `,
    pictureButtons("beam-tree", picture),
  ]);
  return html("div", {}, legend, html("div", { class: "scroll tall" }, roving(picture, ".node")), details);
}
