// What is not the plain model: a line in every view that names it, with a way back.

import { button, html, label } from "./dom.js";
import { SETTINGS, numbersOf } from "./state.js";
import { hasText, say } from "./texts.js";

const NAMED = 3;
// Of a model that is not drawn from.
const PLAIN = { temperature: 1, top_k: 0, top_p: 1 };

/** "encoder.0.3" in words. */
export function partName(name) {
  const [part, layer, head] = name.split(".");
  const known = hasText(`part.${part}`) ? say(`part.${part}`) : part; // an address may have any
  return say(head === undefined ? "part.layer" : "part.head", { part: known, layer, head });
}

function offText(off) {
  const names = off.split(",");
  const named = names.slice(0, NAMED).map(partName).join(", ");
  const more = names.length - NAMED;
  return say(more > 0 ? "change.off_more" : "change.off", { named, more });
}

/** The pieces of a prefix, as far as a translation names them. */
function prefixText(prefix, translation) {
  const count = numbersOf(prefix).length;
  const given = translation?.hypotheses[0].steps.slice(0, count) ?? [];
  const pieces = given.map((step) => label(step.piece)).join(" ");
  return say(pieces ? "change.begins" : "change.begins_given", { pieces, count });
}

function settingChanges(state, model) {
  const own = { ...PLAIN, ...model.settings };
  return SETTINGS.filter((name) => state[name] !== "" && state[name] !== String(own[name])).map((name) => {
    const note = model.settings[name] === undefined ? "" : ` ${say("change.of_model", { value: own[name] })}`;
    return { text: `${say(`change.${name}`)} ${state[name]}${note}`, undo: { [name]: "" } };
  });
}

/** The tensor of another sentence in Intervene. */
function tensorText({ other, patch_tensor }) {
  const start = other.length > 30 ? `${other.slice(0, 30)}…` : other;
  return say("change.tensor", { name: partName(patch_tensor), text: start });
}

/** What is changed: texts, each with the fields that undo it. */
export function changesOf(state, model, translation) {
  const found = settingChanges(state, model);
  const add = (isChanged, text, undo) => isChanged && found.push({ text: text(), undo });
  if (state.applied && state.off !== "") {
    found.unshift({ text: offText(state.off), undo: { off: "", applied: false } });
  }
  add(state.prefix !== "", () => prefixText(state.prefix, translation), { prefix: "" });
  const count = translation?.hypotheses.length ?? Infinity;
  const isOther = state.ids === "" && state.hypothesis > 0 && state.hypothesis < count;
  add(state.ids !== "", () => say("change.tree"), { ids: "" });
  add(isOther, () => say("change.hypothesis", { number: state.hypothesis + 1 }), { hypothesis: 0 });
  if (state.view !== "intervene") return found;
  add(state.target !== "", () => say("change.target"), { target: "" });
  add(state.other !== "", () => tensorText(state), { other: "", patch_map: "" });
  // What the other side has of its own.
  const side = (what) => say("change.side", { what });
  add(state.off !== "" && !state.applied, () => side(offText(state.off)), { off: "" });
  for (const name of ["model_b", "beams_b", "penalty_b"])
    add(state[name] !== "", () => side(say(`change.${name}`, { value: state[name] })), { [name]: "" });
  return found;
}

/** The line with all changes; null for the plain model. */
export function changesBar(changes, set) {
  if (!changes.length) return null;
  const chips = changes.map(({ text, undo }) =>
    button(
      [
        html("span", { class: "unseen" }, `${say("change.undo")} `),
        text,
        html("span", { "aria-hidden": "true" }, " ✕"),
      ],
      () => set(undo),
      { class: "change", id: `undo-${Object.keys(undo)[0]}` },
    ),
  );
  const plain = () => set(Object.assign({}, ...changes.map(({ undo }) => undo)));
  return html("section", { id: "changes", "aria-label": say("change.label") }, [
    html("strong", {}, say("change.title")),
    chips,
    button(say("change.back"), plain, { id: "plain-model" }),
  ]);
}
