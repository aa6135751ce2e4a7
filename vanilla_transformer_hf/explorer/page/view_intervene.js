// Intervene: heads and layers off, another target, settings or model; both sides with numbers.

import { holds, isOffline } from "./api.js";
import { partName } from "./changes.js";
import { attempt, barCell, button, checkbox, choice, dropDraft, faultNote, html, label, labelled } from "./dom.js";
import { number, numberBox, offered, percent, range, roving, row, scroller, section, small, table } from "./dom.js";
import { patchSection } from "./patching.js";
import { partOf, translateRequest } from "./state.js";
import { say } from "./texts.js";
import { rankTable } from "./view_analyse.js";
import { fitting, headButtons, layerPicture } from "./view_attention.js";

/** Toggles for all heads and layers of a part; a pressed one is off. */
function toggles(part, model, { off, flip, can }) {
  const toggle = (name, text) =>
    button(text, () => flip(name), {
      class: "toggle",
      id: `off-${name}`,
      "aria-pressed": off.has(name),
      "aria-label": say("off.label", { name: partName(name) }),
      disabled: !can(name),
    });
  const rows = range(model.layers[part]).map((layer) => {
    const whole = toggle(`${part}.${layer}`, say(part === "cross" ? "off.all_of" : "figure.layer", { number: layer }));
    const each = range(model.heads[part][layer]).map((head) => toggle(`${part}.${layer}.${head}`, String(head)));
    return row({}, whole, each);
  });
  const heads = html("table", { class: "toggles" }, html("tbody", {}, rows));
  return html("div", {}, html("h3", {}, say(`part.${part}`)), heads);
}

/** A set of names with one of them taken in or out, as the address has it. */
function flipped(off, name) {
  const names = off.has(name) ? [...off].filter((one) => one !== name) : [...off, name];
  return names.sort().join(",");
}

/** What both sides ask: a translation, or the score of the target that was typed. */
function questionsOf(state) {
  const off = state.off ? state.off.split(",") : [];
  const plain = translateRequest({ ...state, applied: false });
  const changed = { ...plain, model: state.model_b || state.model, off };
  if (state.beams_b !== "") changed.num_beams = Number(state.beams_b);
  if (state.penalty_b !== "") changed.length_penalty = Number(state.penalty_b);
  return [plain, changed].map((request) => {
    if (state.target.trim() === "") return ["translate", request];
    const { prefix, max_new_tokens, ...others } = request;
    return ["score", { ...others, target: state.target }];
  });
}

/** A change of a probability. */
function changeOf(value) {
  if (Math.abs(value) < 5e-7) return "0";
  return `${value > 0 ? "+" : "−"}${percent(Math.abs(value))}`;
}

/** The translation of a side and its score. */
function side(title, result, other, id) {
  if (result instanceof Error) return html("div", { class: "side" }, html("h3", {}, title), faultNote(result));
  const best = result.hypotheses[0];
  const difference = other instanceof Error ? 0 : best.score - other.hypotheses[0].score;
  const sign = difference > 0 ? "+" : "−";
  const scores = {
    score: `${number(best.score)}${difference ? ` (${sign}${number(Math.abs(difference), 4)})` : ""}`,
    log: number(best.log_probability),
  };
  return html("div", { class: "side" }, [
    html("h3", {}, title),
    html("p", { class: "translation", id, dir: "auto" }, best.text || say("output.empty")),
    small(say("output.scores", scores)),
  ]);
}

/** The tokens of a side, each with its probability and how far that is from the other side's. */
function tokenTable(title, result, other) {
  if (result instanceof Error) return null;
  const against = other instanceof Error ? [] : other.hypotheses[0].steps;
  const rows = result.hypotheses[0].steps.map((step, place) => {
    const isSame = against[place]?.piece.id === step.piece.id;
    const change = isSame ? changeOf(step.probability - against[place].probability) : say("side.another");
    const piece = html("td", { class: "piece" }, label(step.piece));
    const cells = [piece, percent(step.probability), barCell(step.probability), change];
    return row({ class: isSame ? null : "differs" }, null, cells);
  });
  const tokens = table({ class: "numbers" }, [say("patch.token"), "p", "", say("side.difference")], rows);
  return html("div", { class: "side" }, [
    html("h3", {}, title),
    scroller(say("side.tokens", { side: title }), { class: "tall" }, tokens),
  ]);
}

/** What is off on the changed side. */
function offSection({ state, set, model }, changedModel) {
  const off = new Set(state.off ? state.off.split(",") : []);
  const can = (name) => holds(...questionsOf({ ...state, off: flipped(off, name) })[1]);
  const switches = { off, can, flip: (name) => set({ off: flipped(off, name) }) };
  const parts = Object.keys(changedModel.layers).map((part) => toggles(part, changedModel, switches));
  const apply = (applied) => set({ applied });
  const group = { class: "parts", role: "group", "aria-label": say("off.switches") };
  return section(
    say("off.title"),
    html("div", { class: "controls" }, [
      button(say("off.all_on"), () => set({ off: "", applied: false }), { id: "all-on" }),
      changedModel === model ? checkbox(say("off.applied"), state.applied, apply) : null,
    ]),
    isOffline ? html("p", { class: "note" }, say("off.kept")) : null,
    roving(html("div", group, parts)),
  );
}

/** A target that both sides score. */
function targetSection({ state, set, translation }) {
  const typed = html("textarea", {
    id: "target",
    rows: 2,
    value: state.target,
    dir: "auto",
    readonly: isOffline,
    placeholder: say("target.placeholder"),
  });
  const use = (target) => {
    dropDraft("target");
    set({ target });
  };
  const own = () => use(translation.hypotheses[0].text);
  return section(
    say("target.title"),
    html("div", { class: "controls wide" }, [
      labelled(say("target.label"), typed),
      button(say("target.score"), () => use(typed.value), { id: "score", disabled: isOffline }),
      button(say("target.own"), own, { id: "take-the-translation", disabled: isOffline }),
      button(say("target.search"), () => use(""), { id: "search-again" }),
    ]),
  );
}

function settingsSection({ state, set, model, models }) {
  const others = models.filter((one) => one.name !== model.name && (one.is_ours || one.kind === model.kind));
  const names = [["", say("side.same_model")], ...others.map((one) => [one.name, one.name, isOffline])];
  // Heads of one model are not those of another.
  const setModel = (name) => set({ model_b: name, off: "", applied: false });
  const box = (name, text, limits) => {
    const given = { value: state[name], placeholder: say("side.same"), disabled: isOffline };
    return numberBox(name, text, limits, given, (value) => set({ [name]: value }));
  };
  return section(
    say("side.settings"),
    html("div", { class: "controls" }, [
      others.length ? choice(say("header.model"), state.model_b, names, setModel, "model_b") : null,
      box("beams_b", say("search.num_beams"), [1, 32, 1]),
      box("penalty_b", say("search.length_penalty"), [-10, 10, "any"]),
    ]),
  );
}

export async function interveneView(context) {
  const { state, ask, model, models } = context;
  const changedModel = models.find((one) => one.name === state.model_b) ?? model;
  const count = state.off ? state.off.split(",").length : 0;
  const questions = questionsOf(state);
  const [plain, changed] = await Promise.all(questions.map(([question, request]) => attempt(ask(question, request))));
  const changedTitle = say(count ? "side.changed_off" : "side.changed", { model: changedModel.name, count });
  const titles = [say("side.plain", { model: model.name }), changedTitle];
  const [plainSide, changedSide] = [
    { title: titles[0], model, request: questions[0][1], result: plain },
    { title: titles[1], model: changedModel, request: questions[1][1], result: changed },
  ];
  const bothSides = [
    html("h2", {}, say("side.title")),
    html("div", { class: "sides results" }, [
      side(titles[0], plain, changed, "plain"),
      side(titles[1], changed, plain, "changed"),
    ]),
    changedModel.is_ours ? offSection(context, changedModel) : null,
    model.kind === "masked" ? null : targetSection(context),
    settingsSection(context),
    section(
      say("side.by_token"),
      html("div", { class: "sides" }, tokenTable(titles[0], plain, changed), tokenTable(titles[1], changed, plain)),
    ),
    ...(await sidePictures(context, plainSide, changedSide)),
  ].filter(Boolean);
  // The results stay in sight as far as the controls that change them.
  const isPatched = model.kind !== "masked" && model.reads === "text";
  const patched = isPatched ? await patchSection(context) : null;
  return [html("div", {}, bothSides), patched].filter(Boolean);
}

// ----------------------------------------------------------------- the attention and the ranks by layer of both sides

/** Layers of a part that are on. */
function layersOf({ model, pair }, part) {
  const stack = part === "cross" ? "decoder" : part;
  return range(model.layers[part]).filter((layer) => !pair.off.includes(`${stack}.${layer}`));
}

/** What a side shows of an answer, or its error. */
async function pictureOf({ title }, answer, draw) {
  const found = await attempt(answer);
  const shown = found instanceof Error ? faultNote(found) : draw(found);
  return html("div", { class: "side" }, html("h3", {}, title), shown);
}

/** Parts of attention that both sides have. */
function partsOf([plain, changed]) {
  return Object.keys(plain.model.layers).filter((part) => part in changed.model.layers);
}

/** The choice of the layer and the heads of both sides: those that at least one of them has. */
function controls(context, sides, part) {
  const { state, set } = context;
  const parts = offered(partsOf(sides), (name) => say(`attention.part_${name}`));
  const isKept = (layer) => sides.some(({ pair }) => holds("attention", { ...pair, part, layer }));
  const layers = offered(range(Math.max(...sides.map((one) => one.model.layers[part]))), String, isKept);
  const chosen = sides[0].state.layer;
  const setPart = (name) => set({ part: name, layer: -1, heads: "mean", row: -1, column: -1 });
  const setLayer = (layer) => set({ layer: Number(layer) });
  const heads = Math.max(...sides.map((one) => Math.max(...one.model.heads[part])));
  return html("div", { class: "controls" }, [
    choice(say("attention.attention"), part, parts, setPart, "sides-attention"),
    choice(say("head.layer"), state.layer < 0 ? chosen : state.layer, layers, setLayer, "sides-layer"),
    headButtons(context, heads),
  ]);
}

/** The sections of two sides, each { title, model, request, result }; none where they ask the same. */
async function sidePictures(context, plain, changed) {
  const isSame = JSON.stringify(plain.request) === JSON.stringify(changed.request);
  if (isSame || [plain, changed].some((one) => one.result instanceof Error)) return [];
  const parts = partsOf([plain, changed]);
  const wanted = partOf(context.state, context.model);
  const part = parts.includes(wanted) ? wanted : parts.at(-1);
  if (part === undefined) return [];
  const sides = [plain, changed].map((one) => {
    const { model, text, off, target_lang = "" } = one.request;
    const pair = { model, off, text, target_ids: one.result.hypotheses[0].ids, target_lang };
    const fits = fitting({ ...context.state, part }, one.model, layersOf({ ...one, pair }, part));
    return { ...one, pair, state: { ...fits, picture: "map" } };
  });
  const maps = sides.map(({ model, pair, state, ...side }, at) =>
    pictureOf(side, context.ask("attention", { ...pair, part, layer: state.layer }), (found) =>
      layerPicture({ ...context, state }, found, model.heads[part][state.layer], `attention-${at}`, 2),
    ),
  );
  const ranked = sides.every(({ model }) => model.is_ours) ? sides : [];
  const ranks = ranked.map((one, at) =>
    pictureOf(one, context.ask("ranks", one.pair), (found) =>
      rankTable(found, `ranks-${at}`, say("side.ranks_of", { side: one.title })),
    ),
  );
  const pair = async (pictures) => html("div", { class: "sides" }, await Promise.all(pictures));
  return [
    section(
      say("side.attention"),
      small(say("side.attention_help")),
      controls(context, sides, part),
      await pair(maps),
    ),
    ranks.length ? section(say("side.ranks"), small(say("side.ranks_help")), await pair(ranks)) : null,
  ];
}
