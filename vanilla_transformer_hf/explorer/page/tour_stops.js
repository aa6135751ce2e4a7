// The stops of the tour: what each one shows of one sentence. Its texts are in texts_en.js.

import { AnswerError, tensor } from "./api.js";
import { label, number, percent, range } from "./dom.js";
import { pairRequest } from "./state.js";
import { say } from "./texts.js";
import { boxTitle } from "./view_walk.js";

const DIGITS = 4;
const SHOWN = 4; // numbers of a vector
const MOST_ROWS = 12; // of a table of tokens
const NORMS = { layer_norm: "LayerNorm", rms_norm: "RMSNorm", rms_norm_author: "RMSNorm" };
const short = (value) => number(value, DIGITS);
const length = (values) => Math.hypot(...values);

/** The token that is followed unless another is chosen: a gap that is filled, else the longest. */
function longest(pieces, mask) {
  const isGap = (piece) => mask !== "" && piece.text === mask;
  const score = (piece) => (isGap(piece) ? Infinity : piece.special ? -1 : piece.text.length);
  return pieces.reduce((best, piece, at) => (score(piece) > score(pieces[best]) ? at : best), 0);
}

/** The chosen step of the decoder, else the one that looks most at the followed token. */
async function stepFor(token, { state, ask, pair, found }) {
  const count = found.predicted.length;
  if (state.step >= 0 && state.step < count) return state.step;
  try {
    const layer = decoderLayers({ found }).at(-1);
    const looks = await Promise.all(
      found.predicted.map((_, step) => meanWeights({ ask, pair, step }, "cross", layer)),
    );
    const shares = looks.map(({ mean }) => mean[token]);
    return shares.indexOf(Math.max(...shares));
  } catch (error) {
    if (!(error instanceof AnswerError)) throw error;
    return longest(found.predicted, ""); // its attention is not to tokens
  }
}

/** What all stops need: the pass of the sentence through the model, and the followed token. */
export async function readJourney({ state, ask, model, translation }) {
  const pair = pairRequest(state, translation);
  const found = await ask("walk", pair);
  const boxes = new Map(found.boxes.map((box) => [box.name, box]));
  const side = "encoder" in model.layers ? "encoder" : "decoder";
  const pieces = side === "encoder" ? found.source : found.read;
  const chosen = (at, among) => (at >= 0 && at < among.length ? at : longest(among, model.mask));
  const token = chosen(state.token, pieces);
  // A model of one stack predicts at the followed token itself.
  const isPair = model.kind === "translation";
  const step = isPair ? await stepFor(token, { state, ask, pair, found }) : token;
  const layers = found.boxes.filter((box) => box.name.startsWith(side) && box.layer !== null);
  return {
    ...{ ask, pair, found, boxes, side, pieces, token, step, isPair, model, translation, state },
    stack: model.stacks[side],
    first: layers[0].layer,
    name: label(pieces[token]),
    /** A row of a tensor: the followed token's, if no other is named. */
    async row(box, at = token) {
      const { shape, values } = tensor(await ask("tensor", { ...pair, box }));
      const place = rowOf(at, pieces.length, shape[0]);
      return values.subarray(place * shape[1], (place + 1) * shape[1]);
    },
    /** Where a head mixes several tokens for a row: its part, layer and number. */
    async mixing(part = side, at = token) {
      const found = await ask("mixing", { ...pair, part });
      return { part, layer: found.layers[at], head: found.heads[at] };
    },
    async head() {
      const where = await this.mixing();
      return { where, found: await ask("head", { ...pair, ...where }) };
    },
  };
}

/** The row that stands for a token where an encoder halves the length of its sequence. */
function rowOf(place, count, rows) {
  let at = place;
  for (let length = count; length > rows; length = Math.floor(length / 2) + 1) at = Math.floor(at / 2);
  return at;
}

/** The first numbers of vectors, by their names, and their lengths; all numbers of those of one width as a map. */
function vectors(named) {
  const width = Object.values(named).at(-1).length;
  const wide = Object.entries(named).filter(([, values]) => values.length === width);
  const all = new Float32Array(wide.flatMap(([, values]) => [...values]));
  const places = range(SHOWN);
  return {
    heads: ["", ...places.map((place) => `[${place}]`), "…", "length"],
    rows: Object.entries(named).map(([title, values]) => [
      title,
      ...places.map((place) => short(values[place])),
      values.length > SHOWN ? "…" : "",
      short(length(values)),
    ]),
    map: { values: all, rowLabels: wide.map(([title]) => title), columns: width },
  };
}

/** Weights of rows over columns as a map, with the row that a stop is about. */
function weightsMap(values, rows, columns, marked) {
  return { values, rowLabels: rows.map(label), columnLabels: columns.map(label), columns: columns.length, marked };
}

/** Rows of a table of tokens, those with the most of something if there are too many. */
function most(rows, weights) {
  if (rows.length <= MOST_ROWS) return rows;
  const places = rows.map((_, place) => place).sort((a, b) => weights[b] - weights[a]);
  const kept = new Set(places.slice(0, MOST_ROWS));
  return [...rows.filter((_, place) => kept.has(place)), ["…"]];
}

/** A row of a tensor of an answer. */
function rowIn(one, at) {
  const { shape, values } = tensor(one);
  return values.subarray(at * shape[1], (at + 1) * shape[1]);
}

// What each stop shows: the keys of its texts (false: none), the values in them beside the token's name, the shapes
// and the table of numbers, and the state of the view that has all of it.

async function ids({ pieces, token, boxes, side, model }) {
  const { source_vocab_size, vocab_size } = model.config;
  const vocabulary = (side === "encoder" ? source_vocab_size : null) ?? vocab_size;
  return {
    texts: ["ids.text"],
    values: { count: pieces.length, vocabulary, id: pieces[token].id },
    shapes: { x: [boxes.get(`${side}.embedding`).shape[0]] },
    table: { heads: ["token", "id"], rows: pieces.map((piece) => [label(piece), String(piece.id)]), marked: token },
    see: { view: "translate" },
  };
}

/** Whether embeddings are multiplied by √d_model. */
function isScaledBy(boxes, side) {
  return boxes.get(`${side}.scaled`)?.formula.includes("√d_model") ?? false;
}

async function embedding({ row, boxes, side, stack, pieces, token }) {
  const looked = await row(`${side}.embedding`);
  const isScaled = isScaledBy(boxes, side);
  const rows = { [`E[${pieces[token].id}]`]: looked };
  if (isScaled) rows[`· √${stack.width}`] = await row(`${side}.scaled`);
  const [before, after] = [looked, Object.values(rows).at(-1)].map((values) => short(length(values)));
  return {
    texts: ["embedding.text", isScaled ? "embedding.scaled" : "embedding.plain"],
    values: { width: stack.width, root: short(Math.sqrt(stack.width)), before, after },
    shapes: { X: boxes.get(`${side}.embedding`).shape },
    table: vectors(rows),
    see: { view: "walk", box: `${side}.embedding` },
  };
}

/** Which kind of position scheme a model has: the paper's, another sum, or none here. */
function positionKind({ boxes, side, stack }) {
  if (!boxes.has(`${side}.positions`)) return "inside";
  return stack.positions === "sinusoidal" ? "sinusoidal" : "added";
}

async function position(journey) {
  const { row, boxes, side, stack, token } = journey;
  const kind = positionKind(journey);
  const rows = { X: await row(boxes.has(`${side}.scaled`) ? `${side}.scaled` : `${side}.embedding`) };
  if (kind !== "inside") rows["+ PE"] = await row(`${side}.positions`);
  rows[say("figure.input")] = await row(`${side}.input`);
  return {
    texts: [`position.${kind}`],
    values: { place: token, scheme: stack.positions },
    shapes: { X: boxes.get(`${side}.input`).shape },
    table: vectors(rows),
    see: { view: "walk", box: `${side}.input` },
  };
}

function headView(where, { token }) {
  return { view: "head", ...where, row: token, column: -1 };
}

async function project(journey) {
  const { side, model, token } = journey;
  const { found, where } = await journey.head();
  const { query, key, value } = found;
  return {
    texts: ["project.text"],
    values: { ...where, heads: model.heads[side][where.layer], size: query.shape[1] },
    shapes: { Q: query.shape, K: key.shape, V: value.shape },
    table: vectors({ q: rowIn(query, token), k: rowIn(key, token), v: rowIn(value, token) }),
    see: headView(where, journey),
  };
}

async function softmax(journey) {
  const { side, token } = journey;
  const { found, where } = await journey.head();
  const parts = ["products", "scaled", "mask", "weights"].map((part) => rowIn(found[part], token));
  const [products, scaled, mask, weights] = parts;
  const plain = softmaxOf(products.map((value, at) => value + mask[at])); // without the root
  const best = weights.indexOf(Math.max(...weights));
  const isMasked = mask.some((value) => value !== 0);
  const columns = [products, scaled, ...(isMasked ? [mask] : []), weights, plain];
  const masked = isMasked ? [`+ ${say("head.mask")}`] : [];
  const rows = found.columns.map((piece, at) => [label(piece), ...columns.map((values) => short(values[at]))]);
  const shares = { best: label(found.columns[best]), share: percent(weights[best]), plain: percent(plain[best]) };
  return {
    texts: ["softmax.text", side === "decoder" && "softmax.causal"],
    values: { ...where, ...shares, size: found.query.shape[1], root: short(1 / found.scale) },
    shapes: { "Q Kᵀ": found.products.shape, softmax: found.weights.shape },
    table: {
      heads: ["key", "q · k", "/ √d_k", ...masked, "softmax", "softmax(q · k)"],
      rows: most(rows, weights),
      map: weightsMap(tensor(found.weights).values, journey.pieces, found.columns, token),
    },
    see: headView(where, journey),
  };
}

function softmaxOf(values) {
  const largest = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

async function heads(journey) {
  const { side, model, stack, token, row } = journey;
  const { found, where } = await journey.head();
  return {
    texts: ["heads.text"],
    values: { heads: model.heads[side][where.layer], width: stack.width },
    shapes: { head: found.mixed.shape, MultiHead: found.output.shape },
    table: vectors({
      "Σ softmax · v": rowIn(found.mixed, token),
      [`head ${where.head} W^O`]: rowIn(found.contribution, token),
      MultiHead: await row(`${side}.${where.layer}.self_attn`),
    }),
    see: { view: "attention", part: side, layer: where.layer },
  };
}

async function residual(journey) {
  const { side, first, stack, boxes, row, model, ask, pair } = journey;
  const isPost = stack.norm === "post";
  // A layer without a feed-forward ends here.
  const sublayer = `${side}.${first}.self_attn`;
  const box = boxes.has(`${sublayer}.stream`) ? `${sublayer}.stream` : `${side}.${first}.output`;
  const norm = aboutNorm(journey);
  const ofNorm = async (what) => tensor(await ask("tensor", { ...pair, box: `${sublayer}.${what}` })).values;
  const [x, added, after] = [
    await row(boxes.has(`${side}.normed`) ? `${side}.normed` : `${side}.input`), // what the first layer reads
    await row(sublayer),
    await row(box),
  ];
  const isRms = model.config.norm_type.startsWith("rms");
  const learned = { γ: await ofNorm("gain"), ...(isRms ? {} : { β: await ofNorm("bias") }) };
  const sum = `${stack.alpha === 1 ? "" : `${short(stack.alpha)} `}x + Sublayer`;
  const summed = x.map((value, at) => stack.alpha * value + added[at]);
  const read = isPost ? summed : x;
  const mean = read.reduce((total, value) => total + value, 0) / read.length;
  const spread = (around) => length(read.map((value) => value - around)) / Math.sqrt(read.length);
  return {
    texts: [`residual.${stack.norm}`, model.config.norm_type !== "batch_norm" && `residual.${isRms ? "rms" : "mean"}`],
    values: {
      ...{ norm, width: stack.width, before: short(length(x)), after: short(length(after)) },
      ...{ mean: short(mean), deviation: short(spread(isRms ? 0 : mean)) },
    },
    shapes: { x: boxes.get(box).shape },
    table: vectors(
      isPost
        ? { x, Sublayer: added, [sum]: summed, ...learned, [`${norm}(…)`]: after }
        : { x, ...learned, [`${norm}(x)`]: await row(`${sublayer}.norm`), Sublayer: added, [sum]: after },
    ),
    see: { view: "walk", box },
  };
}

function aboutNorm({ model }) {
  return NORMS[model.config.norm_type] ?? model.config.norm_type;
}

async function ffn({ side, first, stack, boxes, row }) {
  const prefix = `${side}.${first}`;
  const reads = stack.norm === "pre" ? `${prefix}.fc2.norm` : `${prefix}.self_attn.stream`;
  const [rows, width] = boxes.get(`${prefix}.fc2`).shape;
  const isRelu = stack.activation === "relu";
  return {
    texts: ["ffn.text"],
    values: { inner: stack.inner, width: stack.width, activation: isRelu ? say("tour.relu") : stack.activation },
    shapes: { x: [rows, width], "x W₁": [rows, stack.inner], "FFN(x)": [rows, width] },
    table: vectors({ x: await row(reads), "FFN(x)": await row(`${prefix}.fc2`) }),
    see: { view: "walk", box: `${prefix}.fc2` },
  };
}

async function layers({ side, stack, boxes, pieces, token, model, isPair, row }) {
  const outputs = [...boxes.values()].filter((box) => box.name.startsWith(side) && box.name.endsWith(".output"));
  const norm = boxes.get(`${side}.norm`);
  const first = await row(boxes.has(`${side}.normed`) ? `${side}.normed` : `${side}.input`);
  const cosine = (one) => one.reduce((sum, value, at) => sum + value * first[at], 0) / (length(one) * length(first));
  const line = async (name, box) => {
    const norms = box.norms[rowOf(token, pieces.length, box.shape[0])];
    return [name, box.shape.join(" × "), short(norms), short(cosine(await row(box.name)))];
  };
  const rows = await Promise.all(outputs.map((box) => line(String(box.layer), box)));
  if (norm) rows.push(await line(boxTitle(norm, model), norm));
  const isShared = new Set(stack.sets).size < stack.sets.length;
  const last = norm ?? outputs.at(-1);
  const more = [isShared && "layers.shared", stack.pools.length > 0 && "layers.pools", isPair && "layers.memory"];
  return {
    texts: ["layers.text", ...more],
    values: { layers: model.layers[side] },
    shapes: { Z: last.shape },
    table: { heads: ["layer", "shape", "length", "cosine"], rows },
    see: { view: "walk", box: last.name },
  };
}

/** The mean of the heads of an attention for the followed step. */
async function meanWeights({ ask, pair, step }, part, layer) {
  const answer = await ask("attention", { ...pair, part, layer });
  const { shape, values } = tensor(answer.weights);
  const [count, rows, columns] = shape;
  const mean = range(columns).map((column) => {
    let sum = 0;
    for (let head = 0; head < count; head++) sum += values[(head * rows + step) * columns + column];
    return sum / count;
  });
  return { columns: answer.columns, mean, shape };
}

/** The layers of the decoder that are on. */
function decoderLayers({ found }) {
  const isDecoder = (box) => box.name.startsWith("decoder") && box.layer !== null;
  return [...new Set(found.boxes.filter(isDecoder).map((box) => box.layer))];
}

async function masked(journey) {
  const { found, step } = journey;
  const { layer, head } = await journey.mixing("decoder", step);
  const answer = await journey.ask("attention", { ...journey.pair, part: "decoder", layer });
  const { shape, values: weights } = tensor(answer.weights);
  const size = shape[1] * shape[2];
  const ofHead = weights.subarray(head * size, (head + 1) * size);
  const shares = ofHead.subarray(step * shape[2], (step + 1) * shape[2]);
  const rows = answer.columns.map((piece, at) => [label(piece), at > step ? "−∞" : "0", short(shares[at])]);
  return {
    texts: ["masked.text"],
    values: { layer, head, predicted: label(found.predicted[step]), read: label(found.read[step]) },
    shapes: { Y: journey.boxes.get("decoder.input").shape, softmax: shape },
    table: {
      heads: ["token", "M", "softmax"],
      rows: most(rows, shares),
      map: weightsMap(ofHead, found.read, answer.columns, step),
    },
    see: { view: "attention", part: "decoder", layer, row: step },
  };
}

async function cross(journey) {
  const { found, step, model } = journey;
  const layer = decoderLayers(journey).at(-1);
  const { columns, mean, shape } = await meanWeights(journey, "cross", layer);
  const best = mean.indexOf(Math.max(...mean));
  const { encoder, decoder } = model.stacks;
  const rows = columns.map((piece, at) => [label(piece), short(mean[at])]);
  return {
    texts: ["cross.text"],
    values: { layer, predicted: label(found.predicted[step]), best: label(columns[best]), share: percent(mean[best]) },
    shapes: { Q: [shape[1], decoder.width], Z: [shape[2], encoder.width], softmax: shape },
    table: { heads: ["token", "softmax"], rows: most(rows, mean) },
    see: { view: "attention", part: "cross", layer, row: step },
  };
}

async function logits({ found, boxes, step, ask, pair, model, state, translation }) {
  const best = found.lenses.at(-1).steps[step];
  const shape = boxes.get("logits").shape;
  const { values } = tensor(await ask("tensor", { ...pair, box: "logits" }));
  const rows = best.map((one) => [label(one), short(values[step * shape[1] + one.id]), short(one.probability)]);
  const chosen = translation.hypotheses[state.hypothesis] ?? translation.hypotheses[0];
  const sharing = model.config.embedding_sharing;
  const isShared = sharing === "all" || (sharing === "decoder" && model.kind !== "translation"); // with E of stop 2
  const isSearched = model.kind !== "masked" && state.ids === "";
  const shares = { best: label(best[0]), share: percent(best[0].probability) };
  return {
    texts: ["logits.text", isShared && "logits.shared", isSearched && "logits.search"],
    values: { ...shares, vocabulary: shape[1], sum: short(chosen.log_probability), score: short(chosen.score) },
    shapes: { logits: shape },
    table: { heads: ["token", "logit", "softmax"], rows },
    see: { view: "translate" },
  };
}

/** The stops in the order of the paper: the section, the equation and what depends on the model. */
const STOPS = [
  { name: "ids", section: "5.1", read: ids },
  {
    name: "embedding",
    section: "3.4",
    read: embedding,
    about: ({ boxes, side }) => ({ isScaled: isScaledBy(boxes, side) }),
  },
  { name: "position", section: "3.5", read: position, equation: positionKind },
  { name: "project", section: "3.2.1", read: project },
  { name: "softmax", section: "3.2.1", read: softmax },
  { name: "heads", section: "3.2.2", read: heads },
  {
    name: "residual",
    section: "3.1",
    read: residual,
    about: (journey) => ({
      norm: aboutNorm(journey),
      isPost: journey.stack.norm === "post",
      alpha: journey.stack.alpha,
    }),
  },
  {
    name: "ffn",
    section: "3.3",
    read: ffn,
    isIn: ({ boxes, side, first }) => boxes.has(`${side}.${first}.fc2`),
    about: ({ stack, model }) => ({
      activation: stack.activation,
      isGated: model.config.feed_forward_type === "gated",
    }),
  },
  { name: "layers", section: "3.1", read: layers },
  { name: "masked", section: "3.2.3", read: masked, isIn: ({ isPair }) => isPair },
  { name: "cross", section: "3.2.3", read: cross, isIn: ({ isPair }) => isPair },
  { name: "logits", section: "3.4", read: logits, about: ({ model }) => ({ kind: model.kind }) },
];

/** The stops that a model has. */
export function stopsOf(journey) {
  return STOPS.filter(({ isIn }) => isIn?.(journey) ?? true);
}

/** Ask all that the tour shows, so that a page that is kept has it. */
export async function askForTour(context) {
  const journey = await readJourney(context);
  await Promise.allSettled(stopsOf(journey).map((stop) => stop.read(journey)));
}
