// What is shown, as it stands behind the # of the address: a link restores it.

const flag = (text) => text === "true";
const place = (least) => (text) => (Number.isInteger(Number(text)) ? Number(text) : least);

// Name -> how it is read. What has its default is left out of the address.
const FIELDS = {
  view: ["translate", String],
  model: ["", String],
  text: ["", String],
  target_lang: ["", String],
  prefix: ["", String], // token ids, joined by commas
  num_beams: ["", String],
  length_penalty: ["", String],
  length_penalty_type: ["", String],
  max_new_tokens: ["", String],
  draws: ["", String], // translations that are drawn in place of a search
  seed: ["", String],
  temperature: ["", String],
  top_k: ["", String],
  top_p: ["", String],
  hypothesis: [0, place(0)],
  ids: ["", String], // a hypothesis of the tree that is not in the list
  dead: [true, flag],
  picture: ["lines", String],
  part: ["cross", String],
  layer: [-1, place(-1)],
  heads: ["mean", String],
  row: [-1, place(-1)],
  column: [-1, place(-1)],
  letters: [true, flag],
  words: [false, flag],
  special: [true, flag],
  threshold: [0.03, (text) => (Number.isFinite(Number(text)) ? Number(text) : 0.03)],
  head: [0, place(0)],
  box: ["", String],
  off: ["", String],
  applied: [false, flag],
  model_b: ["", String],
  beams_b: ["", String],
  penalty_b: ["", String],
  target: ["", String],
  other: ["", String], // a second sentence, one of whose tensors is put in
  patch_tensor: ["encoder.0", String],
  patch_place: [-1, place(-1)],
  patch_from: [-1, place(-1)],
  patch_step: [-1, place(-1)],
  patch_map: ["", String], // "layers" or "heads"
  language: ["", String],
  stop: [0, place(0)], // of the tour
  token: [-1, place(-1)], // that the tour follows
  step: [-1, place(-1)], // of the decoder
  unfolded: [false, flag], // all layers of the figure in full
  analysis: ["attributions", String],
  method: ["left_out", String], // of attributions
  baseline: ["zero", String],
  steps: ["256", String], // of integrated gradients
  rows: ["all", String],
  top: ["10", String], // neurons
  checkpoint: [-1, place(-1)], // of the run, by its step; -1 is the newest
};

// What a control changes in many small steps: they are one entry of the browser's history.
export const SMALL_STEPS = new Set(["threshold", "row", "column", "checkpoint"]);

/** The state of an address; null where it names none, as "view", the anchor of the skip link. */
export function readState(text) {
  const state = Object.fromEntries(Object.entries(FIELDS).map(([name, [value]]) => [name, value]));
  const found = [...new URLSearchParams(text)].filter(([name]) => Object.hasOwn(FIELDS, name));
  for (const [name, value] of found) state[name] = FIELDS[name][1](value);
  return text === "" || (found.length && text.includes("=")) ? state : null;
}

export function writeState(state) {
  const changed = Object.entries(state).filter(([name, value]) => value !== FIELDS[name][0]);
  return new URLSearchParams(changed).toString();
}

export function numbersOf(text) {
  return text === "" ? [] : text.split(",").map(Number);
}

/** The fields of a question about the current model. */
function base(state) {
  return { model: state.model, off: state.applied && state.off ? state.off.split(",") : [] };
}

const TEXTS = ["length_penalty_type", "target_lang"];
// What makes a search or draws others than the model's own.
export const SETTINGS = ["num_beams", "length_penalty", "length_penalty_type", "max_new_tokens", "draws"].concat([
  "temperature",
  "top_k",
  "top_p",
]);

/** Settings of a search or of draws that were chosen. */
function settingsOf(state) {
  const chosen = [...SETTINGS, "seed", "target_lang"].filter((name) => state[name] !== "");
  return Object.fromEntries(chosen.map((name) => [name, TEXTS.includes(name) ? state[name] : Number(state[name])]));
}

export function translateRequest(state) {
  const request = { ...base(state), text: state.text, ...settingsOf(state) };
  if (state.prefix !== "") request.prefix = numbersOf(state.prefix);
  return request;
}

/** A question about the source and the hypothesis that is chosen. */
export function pairRequest(state, translation) {
  const chosen = translation.hypotheses[state.hypothesis] ?? translation.hypotheses[0];
  const target_ids = state.ids !== "" ? numbersOf(state.ids) : chosen.ids;
  return { ...base(state), text: state.text, target_ids, target_lang: state.target_lang };
}

/** A state after changes: what belongs to another sentence, model or translation falls away. */
export function nextState(state, changes) {
  const fresh = {};
  if ("text" in changes && changes.text !== state.text) Object.assign(fresh, { prefix: "", target: "" });
  if ("model" in changes && changes.model !== state.model) {
    // Token ids, heads and languages of one model mean nothing to another.
    Object.assign(fresh, { prefix: "", off: "", applied: false, target_lang: "", box: "" });
    Object.assign(fresh, { patch_tensor: "encoder.0" });
    if (state.model_b === changes.model) fresh.model_b = "";
  }
  const next = { ...state, ...fresh, ...changes };
  const isSame = JSON.stringify(translateRequest(next)) === JSON.stringify(translateRequest(state));
  if (isSame) return next;
  const places = { row: -1, column: -1, token: -1, step: -1 };
  const patched = { patch_place: -1, patch_from: -1, patch_step: -1 };
  return { ...next, hypothesis: 0, ids: "", ...places, ...patched, ...changes };
}

/** The part of attention that is chosen, or the last that the model has. */
export function partOf(state, model) {
  return state.part in model.layers ? state.part : Object.keys(model.layers).at(-1);
}

export function positionsRequest(state, stack) {
  return { ...base(state), stack, length: 64 };
}
