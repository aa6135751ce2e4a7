// The stops of the tour: what each one shows of one sentence. Its texts are in texts_en.js.

import { AnswerError, tensor } from "./api.js";
import { number, percent } from "./dom.js";
import { label } from "./pieces.js";
import { pairRequest } from "./state.js";

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
export function rowOf(place, count, rows) {
  let at = place;
  for (let length = count; length > rows; length = Math.floor(length / 2) + 1) at = Math.floor(at / 2);
  return at;
}

/** The first numbers of vectors, and their lengths. */
function vectors(rows) {
  return {
    heads: ["", ...Array.from({ length: SHOWN }, (_, place) => `[${place}]`), "…", "length"],
    rows: rows.map(([title, values]) => [
      title,
      ...Array.from({ length: SHOWN }, (_, place) => short(values[place])),
      values.length > SHOWN ? "…" : "",
      short(length(values)),
    ]),
  };
}

/** Rows of a table of tokens, those with the most of something if there are too many. */
function most(rows, weights) {
  if (rows.length <= MOST_ROWS) return rows;
  const places = rows.map((_, place) => place).sort((a, b) => weights[b] - weights[a]);
  const kept = new Set(places.slice(0, MOST_ROWS));
  return [...rows.filter((_, place) => kept.has(place)), ["…"]];
}

async function ids({ pieces, token, name, boxes, side, model }) {
  const source = side === "encoder" ? model.config.source_vocab_size : null;
  return {
    texts: [
      [
        "ids.text",
        {
          count: pieces.length,
          vocabulary: source ?? model.config.vocab_size,
          token: name,
          id: pieces[token].id,
        },
      ],
    ],
    shapes: [["x", [boxes.get(`${side}.embedding`).shape[0]]]],
    table: {
      heads: ["token", "id"],
      rows: pieces.map((piece) => [label(piece), String(piece.id)]),
      marked: token,
    },
    see: { view: "translate" },
  };
}

async function embedding({ row, boxes, side, stack, name, pieces, token }) {
  const looked = await row(`${side}.embedding`);
  const isScaled = boxes.get(`${side}.scaled`)?.title.startsWith("times") ?? false;
  const rows = [[`E[${pieces[token].id}]`, looked]];
  if (isScaled) rows.push([`· √${stack.width}`, await row(`${side}.scaled`)]);
  const values = {
    width: stack.width,
    token: name,
    root: short(Math.sqrt(stack.width)),
    before: short(length(looked)),
    after: short(length(rows.at(-1)[1])),
  };
  return {
    texts: [
      ["embedding.text", values],
      [isScaled ? "embedding.scaled" : "embedding.plain", values],
    ],
    shapes: [["X", boxes.get(`${side}.embedding`).shape]],
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
  const { row, boxes, side, stack, name, token } = journey;
  const kind = positionKind(journey);
  const before = boxes.has(`${side}.scaled`) ? `${side}.scaled` : `${side}.embedding`;
  const rows = [["X", await row(before)]];
  if (kind !== "inside") rows.push(["+ PE", await row(`${side}.positions`)]);
  rows.push(["sum", await row(`${side}.input`)]);
  return {
    texts: [[`position.${kind}`, { token: name, place: token, scheme: stack.positions }]],
    shapes: [["X", boxes.get(`${side}.input`).shape]],
    table: vectors(rows),
    see: { view: "walk", box: `${side}.input` },
  };
}

function headView(where, { token }) {
  return { view: "head", ...where, row: token, column: -1 };
}

async function project(journey) {
  const { side, model, name, token } = journey;
  const { found, where } = await journey.head();
  const [query, key, value] = ["query", "key", "value"].map((part) => tensor(found[part]));
  const rowIn = ({ shape, values }) => values.subarray(token * shape[1], (token + 1) * shape[1]);
  const values = {
    token: name,
    heads: model.heads[side][where.layer],
    layer: where.layer,
    head: where.head,
    size: query.shape[1],
  };
  return {
    texts: [["project.text", values]],
    shapes: [
      ["Q", query.shape],
      ["K", key.shape],
      ["V", value.shape],
    ],
    table: vectors([
      ["q", rowIn(query)],
      ["k", rowIn(key)],
      ["v", rowIn(value)],
    ]),
    see: headView(where, journey),
  };
}

async function softmax(journey) {
  const { side, token, name } = journey;
  const { found, where } = await journey.head();
  const columns = found.columns.length;
  const parts = ["products", "scaled", "mask", "weights"].map((part) =>
    tensor(found[part]).values.subarray(token * columns, (token + 1) * columns),
  );
  const [products, , mask, weights] = parts;
  const plain = softmaxOf(products.map((value, at) => value + mask[at])); // without the root
  const best = weights.indexOf(Math.max(...weights));
  const isMasked = mask.some((value) => value !== 0);
  const shown = isMasked ? parts : [parts[0], parts[1], weights];
  const heads = ["key", "q · k", "/ √d_k", ...(isMasked ? ["+ mask"] : []), "softmax"];
  heads.push("softmax(q · k)");
  const rows = found.columns.map((piece, at) => [label(piece), ...[...shown, plain].map((part) => short(part[at]))]);
  const values = {
    token: name,
    size: found.query.shape[1],
    root: short(1 / found.scale),
    best: label(found.columns[best]),
    share: percent(weights[best]),
    plain: percent(plain[best]),
    layer: where.layer,
    head: where.head,
  };
  return {
    texts: [["softmax.text", values], ...(side === "decoder" ? [["softmax.causal", {}]] : [])],
    shapes: [
      ["Q Kᵀ", found.products.shape],
      ["softmax", found.weights.shape],
    ],
    table: { heads, rows: most(rows, weights) },
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
  const { side, model, stack, token, name, row } = journey;
  const { found, where } = await journey.head();
  const mixed = tensor(found.mixed);
  const contribution = tensor(found.contribution);
  const rowIn = ({ shape, values }) => values.subarray(token * shape[1], (token + 1) * shape[1]);
  return {
    texts: [["heads.text", { token: name, heads: model.heads[side][where.layer], width: stack.width }]],
    shapes: [
      ["head", mixed.shape],
      ["MultiHead", found.output.shape],
    ],
    table: vectors([
      ["Σ softmax · v", rowIn(mixed)],
      [`head ${where.head} W^O`, rowIn(contribution)],
      ["MultiHead", await row(`${side}.${where.layer}.self_attn`)],
    ]),
    see: { view: "attention", part: side, layer: where.layer },
  };
}

/** The name of the tensor that the first layer reads. */
function inputOf({ boxes, side }) {
  return boxes.has(`${side}.normed`) ? `${side}.normed` : `${side}.input`;
}

async function residual(journey) {
  const { side, first, stack, boxes, name, row } = journey;
  // A layer without a feed-forward ends here.
  const whole = `${side}.${first}.self_attn.stream`;
  const after = boxes.has(whole) ? whole : `${side}.${first}.output`;
  const rows = [
    ["x", await row(inputOf(journey))],
    ["Sublayer", await row(`${side}.${first}.self_attn`)],
    [stack.norm === "post" ? `${aboutNorm(journey)}(…)` : "+", await row(after)],
  ];
  const values = {
    token: name,
    norm: aboutNorm(journey),
    width: stack.width,
    before: short(length(rows[0][1])),
    after: short(length(rows[2][1])),
  };
  return {
    texts: [[`residual.${stack.norm}`, values]],
    shapes: [["x", boxes.get(after).shape]],
    table: vectors(rows),
    see: { view: "walk", box: after },
  };
}

function aboutNorm({ model }) {
  return NORMS[model.config.norm_type] ?? model.config.norm_type;
}

async function ffn({ side, first, stack, boxes, row }) {
  const prefix = `${side}.${first}`;
  const reads = stack.norm === "pre" ? `${prefix}.fc2.norm` : `${prefix}.self_attn.stream`;
  const [rows, width] = boxes.get(`${prefix}.fc2`).shape;
  return {
    texts: [["ffn.text", { inner: stack.inner, width: stack.width, activation: stack.activation }]],
    shapes: [
      ["x", [rows, width]],
      ["x W₁", [rows, stack.inner]],
      ["FFN(x)", [rows, width]],
    ],
    table: vectors([
      ["x", await row(reads)],
      ["FFN(x)", await row(`${prefix}.fc2`)],
    ]),
    see: { view: "walk", box: `${prefix}.fc2` },
  };
}

async function layers({ side, stack, boxes, name, pieces, token, model, isPair }) {
  const outputs = [...boxes.values()].filter((box) => box.name.startsWith(side) && box.name.endsWith(".output"));
  const norm = boxes.get(`${side}.norm`);
  const lengthIn = (box) => short(box.norms[rowOf(token, pieces.length, box.shape[0])]);
  const rows = outputs.map((box) => [String(box.layer), box.shape.join(" × "), lengthIn(box)]);
  if (norm) rows.push([norm.title, norm.shape.join(" × "), lengthIn(norm)]);
  const isShared = new Set(stack.sets).size < stack.sets.length;
  return {
    texts: [
      ["layers.text", { layers: model.layers[side], token: name }],
      ...(isShared ? [["layers.shared", {}]] : []),
      ...(stack.pools.length ? [["layers.pools", {}]] : []),
      ...(isPair ? [["layers.memory", {}]] : []),
    ],
    shapes: [["Z", (norm ?? outputs.at(-1)).shape]],
    table: { heads: ["layer", "shape", "length"], rows },
    see: { view: "walk", box: (norm ?? outputs.at(-1)).name },
  };
}

/** The mean of the heads of an attention for the followed step. */
async function meanWeights({ ask, pair, step }, part, layer) {
  const answer = await ask("attention", { ...pair, part, layer });
  const { shape, values } = tensor(answer.weights);
  const [count, rows, columns] = shape;
  const mean = Array.from({ length: columns }, (_, column) => {
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
  const start = (head * shape[1] + step) * shape[2];
  const shares = weights.subarray(start, start + shape[2]);
  const rows = answer.columns.map((piece, at) => [label(piece), at > step ? "−∞" : "0", short(shares[at])]);
  const [predicted, read] = [found.predicted[step], found.read[step]].map(label);
  const values = { layer, head, predicted, read };
  return {
    texts: [["masked.text", values]],
    shapes: [
      ["Y", journey.boxes.get("decoder.input").shape],
      ["softmax", shape],
    ],
    table: { heads: ["token", "M", "softmax"], rows: most(rows, shares) },
    see: { view: "attention", part: "decoder", layer, row: step },
  };
}

async function cross(journey) {
  const { found, step } = journey;
  const layer = decoderLayers(journey).at(-1);
  const { columns, mean, shape } = await meanWeights(journey, "cross", layer);
  const best = mean.indexOf(Math.max(...mean));
  const values = {
    layer,
    predicted: label(found.predicted[step]),
    best: label(columns[best]),
    share: percent(mean[best]),
  };
  const rows = columns.map((piece, at) => [label(piece), short(mean[at])]);
  return {
    texts: [["cross.text", values]],
    shapes: [
      ["Q", [shape[1], journey.model.stacks.decoder.width]],
      ["Z", [shape[2], journey.model.stacks.encoder.width]],
      ["softmax", shape],
    ],
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
  const isSearched = model.kind !== "masked" && state.ids === "";
  return {
    texts: [
      ["logits.text", { vocabulary: shape[1], best: label(best[0]), share: percent(best[0].probability) }],
      ...(isSearched ? [["logits.search", { sum: short(chosen.log_probability) }]] : []),
    ],
    shapes: [["logits", shape]],
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
    about: ({ boxes, side }) => ({
      isScaled: boxes.get(`${side}.scaled`)?.title.startsWith("times") ?? false,
    }),
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
  {
    name: "logits",
    section: "3.4",
    read: logits,
    about: ({ model }) => ({ kind: model.kind }),
  },
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
