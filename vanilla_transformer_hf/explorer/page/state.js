// What is shown, as it stands behind the # of the address: a link restores it.

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
  hypothesis: [0, Number],
  ids: ["", String], // a hypothesis of the tree that is not in the list
  dead: [true, (text) => text === "true"],
  picture: ["lines", String],
  part: ["cross", String],
  layer: [-1, Number],
  heads: ["mean", String],
  row: [-1, Number],
  column: [-1, Number],
  words: [false, (text) => text === "true"],
  special: [true, (text) => text === "true"],
  threshold: [0.03, Number],
  head: [0, Number],
  box: ["", String],
  off: ["", String],
  applied: [false, (text) => text === "true"],
  model_b: ["", String],
  beams_b: ["", String],
  penalty_b: ["", String],
  target: ["", String],
  language: ["", String],
  stop: [0, Number], // of the tour
  token: [-1, Number], // that the tour follows
  step: [-1, Number], // of the decoder
  unfolded: [false, (text) => text === "true"], // all layers of the figure in full
};

export function defaults() {
  return Object.fromEntries(Object.entries(FIELDS).map(([name, [value]]) => [name, value]));
}

export function readState(text) {
  const state = defaults();
  for (const [name, value] of new URLSearchParams(text)) {
    if (name in FIELDS) state[name] = FIELDS[name][1](value);
  }
  return state;
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

/** Settings of a search that were chosen. */
export function settingsOf(state) {
  const found = {};
  for (const name of ["num_beams", "length_penalty", "max_new_tokens"]) {
    if (state[name] !== "") found[name] = Number(state[name]);
  }
  if (state.length_penalty_type !== "") found.length_penalty_type = state.length_penalty_type;
  if (state.target_lang !== "") found.target_lang = state.target_lang;
  return found;
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

/** The part of attention that is chosen, or the last that the model has. */
export function partOf(state, model) {
  return state.part in model.layers ? state.part : Object.keys(model.layers).at(-1);
}

export function positionsRequest(state, stack) {
  return { ...base(state), stack, length: 64 };
}
