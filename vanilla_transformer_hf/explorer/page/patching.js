// Activation patching: the next token with one tensor of another sentence, and a map of all layers.

import { AnswerError, NotKept, holds, isOffline, tensor } from "./api.js";
import { diverging } from "./colors.js";
import { attempt, barCell, button, choice, dropDraft, faultNote, html, label, labelled, number } from "./dom.js";
import { offered, percent, range, roving, row, scroller, section, sentenceBox, small, table } from "./dom.js";
import { heatMap } from "./heat_map.js";
import { pairRequest } from "./state.js";
import { say } from "./texts.js";

const MAPS = ["layers", "heads"];

/** The tensor of the state as { part, layer, head }, or what the model has in its place. */
function chosen(state, model) {
  const [name, ...numbers] = state.patch_tensor.split(".");
  const part = name in model.layers ? name : Object.keys(model.layers)[0];
  const within = (text, count) => Math.min(Number(text) || 0, count - 1);
  const layer = within(numbers[0], model.layers[part]);
  const head = numbers[1] === undefined ? null : within(numbers[1], model.heads[part][layer]);
  return { part, layer, head };
}

function nameOf({ part, layer, head }) {
  return head === null ? `${part}.${layer}` : `${part}.${layer}.${head}`;
}

/** Fields of both questions. */
function baseOf(state, translation) {
  const request = { ...pairRequest(state, translation), other: state.other };
  if (state.patch_step >= 0) request.step = state.patch_step;
  return request;
}

function requestOf(state, { model, translation }) {
  const request = { ...baseOf(state, translation), tensor: nameOf(chosen(state, model)) };
  if (state.patch_place >= 0) request.position = state.patch_place;
  if (state.patch_from >= 0) request.other_position = state.patch_from;
  return request;
}

function mapRequestOf(state, { model, translation }, found) {
  const request = { ...baseOf(state, translation), part: chosen(state, model).part };
  if (state.patch_map === "heads") request.position = found.position;
  return request;
}

/** The answer or its error; what a kept page lacks is for the page to say. */
async function answer(asked) {
  const found = await attempt(asked);
  if (found instanceof NotKept) throw found;
  return found;
}

function otherField({ state, set }) {
  const use = (other) => {
    dropDraft("other");
    set({ other, patch_place: -1, patch_from: -1, patch_step: -1 });
  };
  const typed = sentenceBox("other", { rows: 1, value: state.other }, use);
  return html("div", { class: "controls wide" }, [
    labelled(say("patch.other"), typed),
    button(say("patch.run"), () => use(typed.value), { id: "patch-run", disabled: isOffline }),
  ]);
}

/** Options for places: the one that is taken by itself, and all of them. */
function places(pieces, byItself) {
  return [[-1, byItself], ...pieces.map((piece, place) => [place, `${place}: ${label(piece)}`])];
}

function controls(context, found) {
  const { state, set, model, translation } = context;
  const now = chosen(state, model);
  const { part, layer, head } = now;
  const can = (changes) => holds("patch", requestOf({ ...state, ...changes }, context));
  const pick = (name, text, value, options, changes) => {
    const marked = options.map(([option, shown]) => [option, shown, !can(changes(option))]);
    return choice(text, value, marked, (one) => set(changes(one)), name);
  };
  const other = { patch_place: -1, patch_from: -1 };
  const to = (changes) => ({ patch_tensor: nameOf({ ...now, ...changes }) });
  const steps = state.ids === "" ? translation.hypotheses[state.hypothesis]?.steps : null;
  return html("div", { class: "controls" }, [
    pick(
      "patch-part",
      say("patch.part"),
      part,
      offered(Object.keys(model.layers), (name) => say(`part.${name}`)),
      (name) => ({ ...to({ part: name, layer: 0, head: null }), ...other }),
    ),
    pick("patch-layer", say("patch.layer"), layer, offered(range(model.layers[part])), (value) =>
      to({ layer: Number(value), head: null }),
    ),
    pick(
      "patch-head",
      say("patch.head"),
      head ?? "",
      [["", say(part === "cross" ? "patch.all_heads" : "patch.whole")], ...offered(range(model.heads[part][layer]))],
      (value) => to({ head: value === "" ? null : Number(value) }),
    ),
    found.places &&
      pick(
        "patch-place",
        say("patch.place"),
        state.patch_place,
        places(found.places, say("patch.place_itself", { token: labelAt(found, "position") })),
        (value) => ({ patch_place: Number(value), patch_from: -1 }),
      ),
    found.other_places &&
      pick(
        "patch-from",
        say("patch.from"),
        state.patch_from,
        places(found.other_places, say("patch.from_itself", { token: labelAt(found, "other_position") })),
        (value) => ({ patch_from: Number(value) }),
      ),
    pick(
      "patch-step",
      say("patch.step"),
      state.patch_step,
      places(
        (steps ?? []).map((step) => step.piece),
        say("patch.step_itself"),
      ),
      (value) => ({ patch_step: Number(value), ...other }),
    ),
  ]);
}

/** A place and its token. */
function labelAt(found, name) {
  const pieces = name === "position" ? found.places : found.other_places;
  return `${found[name]}: ${label(pieces[found[name]])}`;
}

/** The most probable tokens of one of the three passes, with the difference of the two logits. */
function column(title, best, difference, { first, second }) {
  const rows = best.map((one) => {
    const isCompared = one.id === first.id || one.id === second.id;
    const piece = html("td", { class: "piece" }, label(one));
    return row(
      { class: isCompared ? "compared" : null },
      null,
      piece,
      percent(one.probability),
      barCell(one.probability),
    );
  });
  return html("div", { class: "side" }, [
    html("h3", {}, title),
    small(`Δ = ${number(difference)}`),
    scroller(title, {}, table({ class: "numbers" }, [say("patch.token"), "p", ""], rows)),
  ]);
}

/** What share of the way from one sentence to the other a difference has gone. */
function share(value, plain, other) {
  return plain === other ? "–" : `${Math.round((100 * (value - plain)) / (other - plain))} %`;
}

function results(found) {
  const [plain, patched, other] = found.differences;
  const names = ["patch.plain", "patch.patched", "patch.second"];
  const tokens = { first: label(found.first), second: label(found.second) };
  const translation = html("strong", { id: "patch-translation", dir: "auto" }, found.translation || "–");
  return [
    small(say("patch.delta", { ...tokens, step: found.step })),
    html("p", { id: "patch-share", role: "status" }, say("patch.share", { share: share(patched, plain, other) })),
    found.translation === null ? null : html("p", {}, `${say("patch.translation")} `, translation),
    html("div", { class: "sides three" }, [
      names.map((name, place) => column(say(name), found.best[place], found.differences[place], found)),
    ]),
  ];
}

/** A map of how far each layer's tensor changes the difference, token by token or head by head. */
function changesMap(context, found, mapped) {
  const { state, set, model } = context;
  const { part } = chosen(state, model);
  const { shape, values } = tensor(mapped.differences);
  const changed = values.map((value) => value - mapped.plain);
  const most = changed.reduce((so, value) => (Math.abs(value) > so ? Math.abs(value) : so), 0);
  const scale = diverging(most);
  const isHeads = state.patch_map === "heads";
  const columns = isHeads ? range(shape[1]).map((head) => say("head.of", { head })) : mapped.places.map(label);
  const pick = (row, place) => {
    if (!Number.isFinite(changed[row * shape[1] + place])) return;
    const layer = mapped.layers[row];
    const head = isHeads ? place : null;
    const at = isHeads ? found.position : place;
    set({ patch_tensor: nameOf({ part, layer, head }), patch_place: at, patch_from: -1 });
  };
  return heatMap({
    title: say(isHeads ? "patch.map_heads_title" : "patch.map_layers_title", {
      part: say(`part.${part}`),
      token: labelAt(found, "position"),
    }),
    id: "patching",
    values: changed,
    rowLabels: mapped.layers.map((layer) => say("figure.layer", { number: layer })),
    columnLabels: columns,
    cell: Math.max(44, Math.min(64, Math.floor(900 / shape[1]))),
    scale: (value) => scale(Number.isFinite(value) ? value : 0),
    pick,
  });
}

async function mapPart(context, found) {
  const { state, set, ask } = context;
  const choose = (name) => set({ patch_map: state.patch_map === name ? "" : name });
  const buttons = MAPS.map((name) =>
    button(say(`patch.map_${name}`), () => choose(name), {
      id: `patch-map-${name}`,
      "aria-pressed": state.patch_map === name,
      disabled: !holds("patch_map", mapRequestOf({ ...state, patch_map: name }, context, found)),
    }),
  );
  const group = { class: "controls", role: "group", "aria-label": say("patch.maps") };
  const parts = [roving(html("div", group, buttons))];
  if (!MAPS.includes(state.patch_map)) return parts;
  const mapped = await answer(ask("patch_map", mapRequestOf(state, context, found)));
  if (mapped instanceof AnswerError) return [...parts, faultNote(mapped)];
  const help = small(say("patch.map_help"));
  return [...parts, changesMap(context, found, mapped), help];
}

/** The section of Intervene. */
export async function patchSection(context) {
  const { state, ask } = context;
  const parts = [small(say("patch.help")), otherField(context)];
  if (state.other.trim() === "") return section(say("patch.title"), parts);
  const found = await answer(ask("patch", requestOf(state, context)));
  parts.push(controls(context, found));
  if (found instanceof AnswerError) parts.push(faultNote(found));
  else parts.push(...results(found), ...(await mapPart(context, found)));
  return section(say("patch.title"), parts.filter(Boolean));
}
