// What is not the plain model: a line in every view that names it, with a way back.

import { button, html } from "./dom.js";
import { label } from "./pieces.js";
import { numbersOf } from "./state.js";

const NAMED = 3;
const PARTS = { encoder: "encoder", decoder: "decoder", cross: "cross-attention" };
const SETTINGS = {
  num_beams: "beams",
  length_penalty: "length penalty α",
  length_penalty_type: "type of length penalty",
  max_new_tokens: "most tokens",
  draws: "draws",
  temperature: "temperature",
  top_k: "top-k",
  top_p: "top-p",
};
// Of a model that is not drawn from.
const PLAIN = { temperature: 1, top_k: 0, top_p: 1 };

/** "encoder.0.3" in words. */
function partName(name) {
  const [part, layer, head] = name.split(".");
  return `${PARTS[part] ?? part} layer ${layer}${head === undefined ? "" : ` head ${head}`}`;
}

function offText(off) {
  const names = off.split(",");
  const named = names.slice(0, NAMED).map(partName).join(", ");
  return `off: ${named}${names.length > NAMED ? ` and ${names.length - NAMED} more` : ""}`;
}

/** The pieces of a prefix, as far as a translation names them. */
function prefixText(prefix, translation) {
  const count = numbersOf(prefix).length;
  const given = translation?.hypotheses[0].steps.slice(0, count) ?? [];
  const pieces = given.map((step) => label(step.piece)).join(" ");
  return `begins with ${pieces || `${count} given ${count === 1 ? "token" : "tokens"}`}`;
}

function settingChanges(state, model) {
  const own = { ...PLAIN, ...model.settings };
  return Object.entries(SETTINGS)
    .filter(([name]) => state[name] !== "" && state[name] !== String(own[name]))
    .map(([name, text]) => {
      const note = model.settings[name] === undefined ? "" : ` (model: ${own[name]})`;
      return { text: `${text} ${state[name]}${note}`, undo: { [name]: "" } };
    });
}

/** The tensor of another sentence in Intervene. */
function tensorText({ other, patch_tensor }) {
  const start = other.length > 30 ? `${other.slice(0, 30)}…` : other;
  return `${partName(patch_tensor)} of “${start}”`;
}

/** What the other side of Intervene has of its own. */
function sideChanges(state) {
  const found = [];
  const add = (isChanged, text, undo) => isChanged && found.push({ text: `changed side ${text}`, undo });
  add(state.off !== "" && !state.applied, offText(state.off), { off: "" });
  add(state.model_b !== "", `is ${state.model_b}`, { model_b: "" });
  add(state.beams_b !== "", `has beams ${state.beams_b}`, { beams_b: "" });
  add(state.penalty_b !== "", `has length penalty α ${state.penalty_b}`, { penalty_b: "" });
  return found;
}

/** What is changed: texts, each with the fields that undo it. */
export function changesOf(state, model, translation) {
  const found = settingChanges(state, model);
  if (state.applied && state.off !== "") {
    found.unshift({ text: offText(state.off), undo: { off: "", applied: false } });
  }
  if (state.prefix !== "") {
    found.push({ text: prefixText(state.prefix, translation), undo: { prefix: "" } });
  }
  const count = translation?.hypotheses.length ?? Infinity;
  if (state.ids !== "") found.push({ text: "a hypothesis of the tree", undo: { ids: "" } });
  else if (state.hypothesis > 0 && state.hypothesis < count) {
    found.push({
      text: `hypothesis ${state.hypothesis + 1}, not the best`,
      undo: { hypothesis: 0 },
    });
  }
  if (state.view !== "intervene") return found;
  if (state.target !== "") found.push({ text: "scores a given target", undo: { target: "" } });
  if (state.other !== "") found.push({ text: tensorText(state), undo: { other: "", patch_map: "" } });
  return [...found, ...sideChanges(state)];
}

/** The line with all changes; null for the plain model. */
export function changesBar(changes, set) {
  if (!changes.length) return null;
  const chips = changes.map(({ text, undo }) =>
    button(
      [html("span", { class: "unseen" }, "undo: "), text, html("span", { "aria-hidden": "true" }, " ✕")],
      () => set(undo),
      { class: "change", id: `undo-${Object.keys(undo)[0]}` },
    ),
  );
  const plain = () => set(Object.assign({}, ...changes.map(({ undo }) => undo)));
  return html(
    "section",
    { id: "changes", "aria-label": "not the plain model" },
    html("strong", {}, "Not the plain model:"),
    chips,
    button("Back to the plain model", plain, { id: "plain-model" }),
  );
}
