// Intervene: the attention and the ranks by layer of both sides, beside each other.

import { rankTable } from "./analyse_layers.js";
import { holds } from "./api.js";
import { choice, html, numbered, section, small } from "./dom.js";
import { attempt, faultNote } from "./faults.js";
import { partOf } from "./state.js";
import { say } from "./texts.js";
import { fitting, headButtons, layerPicture } from "./view_attention.js";

/** Layers of a part that are on. */
function layersOf({ model, pair }, part) {
  const stack = part === "cross" ? "decoder" : part;
  return Array.from({ length: model.layers[part] }, (_, layer) => layer).filter(
    (layer) => !pair.off.includes(`${stack}.${layer}`),
  );
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
  const parts = partsOf(sides).map((name) => [name, say(`attention.part_${name}`)]);
  const layers = numbered(Math.max(...sides.map((one) => one.model.layers[part])), (layer) =>
    sides.some(({ pair }) => holds("attention", { ...pair, part, layer })),
  );
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
export async function sidePictures(context, plain, changed) {
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
