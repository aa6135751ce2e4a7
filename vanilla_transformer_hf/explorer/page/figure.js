// The paper's figure 1, drawn with the layers of this model and the lengths of this sentence's
// vectors. A box is a button that opens its tensor.

import { sequential } from "./colors.js";
import { label, roving, svg, svgButton } from "./dom.js";
import { say } from "./texts.js";

const NARROW = 700; // pixels of a window
const IN_FULL = 2; // a stack of so few layers is drawn in full
const SUBLAYERS = ["self_attn", "encoder_attn", "fc2"];
const KINDS = { self_attn: "attention", encoder_attn: "cross", fc2: "feed-forward" };
// The layer of each stack that was opened last.
const opened = { encoder: 0, decoder: 0 };

/** Pieces as lines of text of about so many letters, three at most. */
function textLines(pieces, letters) {
  const lines = [""];
  for (const piece of pieces) {
    const text = label(piece);
    const last = lines.at(-1);
    if (last && last.length + text.length + 1 > letters) lines.push(text);
    else lines[lines.length - 1] = last ? `${last} ${text}` : text;
  }
  return lines.length > 3 ? [lines[0], lines[1], `${lines[2].slice(0, letters - 2)} …`] : lines;
}

/** Draws one stack from the bottom to the top. */
class Stack {
  constructor({ side, place, boxes, model, state, isWide }) {
    Object.assign(this, { side, boxes, model, state });
    this.stack = model.stacks[side];
    this.letters = isWide ? 30 : 19;
    this.column = new Column(side, place);
    const [boxSide, layer] = state.box.split(".");
    if (boxSide === side && /^\d+$/.test(layer)) opened[side] = Number(layer);
    // A layer that is off has nothing to open, and another model may have fewer.
    if (!this.has(`${side}.${opened[side]}.output`)) {
      const isOutput = (box) => box.name.startsWith(`${side}.`) && box.name.endsWith(".output");
      opened[side] = [...boxes.values()].find(isOutput)?.layer;
    }
  }

  has(name) {
    return this.boxes.has(name);
  }

  words(pieces, title) {
    this.column.words([title]);
    this.column.words(textLines(pieces, this.letters), "sentence");
  }

  /** From the ids to the input of the first layer. */
  embeddings() {
    const { column, side } = this;
    const isFile = side === "encoder" && this.model.reads !== "text";
    const first = say(isFile ? "figure.front_end" : "figure.embedding");
    column.box(`${side}.embedding`, first, "embedding");
    if (this.has(`${side}.scaled`)) {
      column.box(`${side}.scaled`, say("figure.scaled"), "embedding", { isLow: true });
    }
    if (this.has(`${side}.positions`)) {
      const [positions, sum] = [say("figure.positions"), say("figure.input")];
      column.positions(`${side}.positions`, positions, `${side}.input`, sum);
    }
    if (!this.has(`${side}.normed`)) return;
    column.box(`${side}.normed`, say("figure.normed"), "norm", { isLow: true });
  }

  layer(number) {
    const { column, side, stack } = this;
    if (stack.pools.includes(number)) column.note(say("figure.pools"));
    const prefix = `${side}.${number}`;
    if (!this.has(`${prefix}.output`)) return column.note(say("figure.off", { number }));
    const present = SUBLAYERS.filter((name) => this.has(`${prefix}.${name}`));
    // With the letter of its weights where layers share them.
    const isShared = new Set(stack.sets).size < stack.sets.length;
    const letter = String.fromCharCode(65 + stack.sets[number]);
    const title = `${say("figure.layer", { number })}${isShared ? ` · ${say("figure.weights", { letter })}` : ""}`;
    const isOpen = this.state.unfolded || this.model.layers[side] <= IN_FULL || number === opened[side];
    if (!isOpen) return column.folded(`${prefix}.output`, title, number, present.includes("encoder_attn"));
    const isMasked = (name) => name === "self_attn" && side === "decoder";
    column.open(title, () =>
      present.forEach((name, place) =>
        column.sublayer({
          prefix: `${prefix}.${name}`,
          label: say(`figure.${isMasked(name) ? "masked_attn" : name}`),
          kind: KINDS[name],
          layer: number,
          isPost: stack.norm === "post",
          last: place === present.length - 1,
          alpha: stack.alpha,
        }),
      ),
    );
  }

  layers() {
    const { column, side, stack, model } = this;
    for (let number = 0; number < model.layers[side]; number++) this.layer(number);
    if (stack.feed_forward === "stack" || stack.feed_forward === "encoder") {
      column.words([say("figure.shared_ffn")]);
    }
    if (!this.has(`${side}.norm`)) return;
    column.box(`${side}.norm`, say("figure.final"), "norm", { isLow: true });
  }

  /** From the last layer to the probabilities. */
  output(pieces) {
    const { column } = this;
    column.box("logits", say("figure.logits"), "output");
    column.box("probabilities", say("figure.probabilities"), "output");
    column.arrow();
    if (pieces.length) this.words(pieces, say("figure.predicted"));
  }
}

/** A line through points, [x, height, x, height, …], with an arrow's head at its end. */
function path({ points, isArrow, className = "" }, height) {
  const at = points.map((value, place) => (place % 2 ? height - value : value));
  const [x0, y0, x, y] = at.slice(-4);
  const made = [svg("path", { class: `flow ${className}`, d: `M${at.slice(0, 2)}L${at.slice(2)}` })];
  if (!isArrow) return made;
  const [right, down] = [Math.sign(x - x0), Math.sign(y - y0)];
  const [backX, backY] = [x - 6 * right, y - 6 * down];
  const [besideX, besideY] = [3.5 * down, 3.5 * right];
  const head = [x, y, backX - besideX, backY + besideY, backX + besideX, backY - besideY];
  return [...made, svg("path", { class: `head ${className}`, d: `M${head.slice(0, 2)}L${head.slice(2)}Z` })];
}

/** The sentence in a box: a cell for each token, darker where its vector is longer. */
function cells(values, { x, y, width, isCentred }) {
  const most = Math.max(...values) || 1;
  const scale = sequential(most);
  const size = Math.min(10, width / values.length);
  const start = isCentred ? x + (width - size * values.length) / 2 : x;
  return values.map((value, place) =>
    svg("rect", {
      class: "cell",
      x: start + place * size,
      y,
      width: Math.max(0.5, size - (size > 4 ? 1 : 0)),
      height: 7,
      fill: scale(value),
    }),
  );
}

/** What stands in a box: its name and, if it is high, the tokens' cells and, if wide, the shape. */
function boxContents(one, box, y, isWide) {
  const middle = one.x + one.width / 2;
  const centre = { class: "name", x: middle, "text-anchor": "middle" };
  if (one.kind === "sum") return svg("text", { ...centre, y: y + 15 }, "+");
  if (one.height < 30) return svg("text", { ...centre, y: y + one.height / 2 + 4 }, one.label);
  const row = { x: one.x + 8, y: y + one.height - 13 };
  if (!isWide) {
    return [
      svg("text", { ...centre, y: y + 16 }, one.label),
      cells(box.norms, { ...row, width: one.width - 16, isCentred: true }),
    ];
  }
  const shape = `[${box.shape.join(" × ")}]`;
  const side = { class: "value", x: one.x + one.width - 8, y: y + one.height - 6 };
  return [
    svg("text", { class: "name", x: row.x, y: y + 16 }, one.label),
    cells(box.norms, { ...row, width: one.width - 24 - 6.5 * shape.length }),
    svg("text", { ...side, "text-anchor": "end" }, shape),
  ];
}

function boxElement(one, box, { height, isChosen, open, isWide }) {
  const y = height - one.at - one.height;
  const layer = one.layer === null ? "" : `${say("figure.layer", { number: one.layer })}, `;
  const title = `${one.isFolded ? "" : layer}${one.label}, ${box.shape.join(" × ")}`;
  const rx = one.kind === "sum" ? one.height / 2 : 5;
  return svgButton(
    {
      class: `part ${one.kind}${isChosen ? " chosen" : ""}`,
      id: `box-${one.name}`,
      "aria-pressed": isChosen,
      "aria-label": title,
    },
    () => open(one.name),
    svg("rect", { x: one.x, y, width: one.width, height: one.height, rx }),
    boxContents(one, box, y, isWide),
    svg("title", {}, title),
  );
}

/** The way of the encoder's output into each layer of the decoder, drawn into their columns. */
function drawMemory(encoder, decoder, bus, isWide) {
  const { reads, place } = decoder;
  if (!reads.length) return;
  const className = "memory";
  const top = encoder.at + 16;
  const heights = [top, ...reads];
  decoder.line([encoder.middle, encoder.at, encoder.middle, top, bus, top], { className });
  decoder.line([bus, Math.min(...heights), bus, Math.max(...heights)], { className });
  for (const at of reads) decoder.line([bus, at, place.left, at], { className, isArrow: true });
  decoder.text(encoder.middle, top + 6, say("figure.memory"));
  if (!isWide) return;
  for (const at of reads) decoder.text((bus + place.frame[0]) / 2, at + 5, say("figure.keys_values"));
}

/** The names of the boxes that can be opened, in the order of the computation. */
export function orderOf(found) {
  const names = new Set(found.boxes.map((box) => box.name));
  const isDrawn = (name) => {
    const side = name.split(".")[0];
    return !name.endsWith(".input") || names.has(`${side}.positions`);
  };
  return found.boxes.map((box) => box.name).filter(isDrawn);
}

/** The figure; `open` is called with the name of the box that is chosen. */
export function figure({ found, model, state, open }) {
  const isWide = window.innerWidth >= NARROW;
  const isPair = model.kind === "translation";
  const columns = columnsOf(isWide, isPair);
  const boxes = new Map(found.boxes.map((box) => [box.name, box]));
  const stacks = {};
  for (const side of Object.keys(model.stacks)) {
    const stack = new Stack({ side, place: columns[side], boxes, model, state, isWide });
    const pieces = side === "encoder" ? found.source : found.read;
    const title = isPair ? (side === "encoder" ? "source" : "target") : "text";
    stack.words(pieces, say(`figure.${title}`));
    stack.embeddings();
    stack.layers();
    if (!isPair || side === "decoder") stack.output(found.predicted);
    stacks[side] = stack;
  }
  const made = Object.values(stacks).map((stack) => stack.column);
  if (isPair) drawMemory(stacks.encoder.column, stacks.decoder.column, columns.bus, isWide);
  const height = Math.max(...made.map((column) => column.at)) + (isPair ? 40 : 12);
  const all = (kind) => made.flatMap((column) => column[kind]);
  const frames = all("frames").map(({ x, to, at, top, className = "" }) => {
    const size = { x, y: height - top, width: to - x, height: top - at, rx: 8 };
    return svg("rect", { class: `frame ${className}`, ...size });
  });
  const texts = all("texts").map(({ x, at, text, className, anchor }) =>
    svg("text", { class: className, x, y: height - at, "text-anchor": anchor }, text),
  );
  const parts = all("boxes").map((one) => {
    const about = { height, isChosen: one.name === state.box, open, isWide };
    return boxElement(one, boxes.get(one.name), about);
  });
  const kind = isWide ? "figure" : "figure narrow";
  const about = { class: kind, width: columns.width, height, role: "group", "aria-label": say("line.walk") };
  const lines = all("lines").map((line) => path(line, height));
  return roving(svg("svg", about, [frames, lines, texts, parts]), '[role="button"]');
}

// ---------------------------------- where the parts stand: heights are counted upwards from the bottom, as data flows

const GAP = 12; // between boxes, for an arrow
const LOW = 26;
const HIGH = 38;
const LINE = 15; // of text
const RADIUS = 10; // of a sum
const BESIDE = 10; // between a sum and the box of the positions
const OVERHANG = 16; // of that box

/** Columns: where boxes, residual branches and the encoder's output run. */
function columnsOf(isWide, hasBoth) {
  const width = isWide ? 190 : 126;
  const gap = isWide ? 44 : 13;
  const encoder = { lane: 12, left: 30, width, outer: -1, frame: [4, 30 + width + 8] };
  const bus = encoder.frame[1] + gap;
  const start = hasBoth ? bus + gap : 4;
  const left = start + 8;
  const end = left + width + 26;
  const decoder = { lane: left + width + 18, left, width, outer: 1, frame: [start, end] };
  return { encoder, decoder, bus, width: (hasBoth ? end : Math.max(end, encoder.frame[1])) + 4 };
}

/** What is drawn of one stack: boxes, lines and texts, each with its height above the bottom. */
class Column {
  constructor(side, place) {
    this.side = side;
    this.place = place;
    this.middle = place.left + place.width / 2;
    this.at = 4;
    this.boxes = [];
    this.lines = [];
    this.texts = [];
    this.frames = [];
    this.reads = []; // heights at which the encoder's output arrives
  }

  /** A line through points, [x, height, x, height, …]. */
  line(points, { isArrow = false, className } = {}) {
    this.lines.push({ points, isArrow, className });
  }

  text(x, at, text, { className = "value", anchor = "middle" } = {}) {
    this.texts.push({ x, at, text, className, anchor });
  }

  words(lines, className) {
    const top = this.at + (lines.length - 1) * LINE + 4;
    lines.forEach((text, row) => this.text(this.middle, top - row * LINE, text, { className }));
    this.at += lines.length * LINE + 2;
  }

  arrow() {
    this.line([this.middle, this.at, this.middle, this.at + GAP], { isArrow: true });
    this.at += GAP;
  }

  /** A box of the whole width, behind an arrow; with the tokens' cells it is higher. */
  box(name, label, kind, { isLow = false, isFolded = false, layer = null } = {}) {
    this.arrow();
    const height = isLow ? LOW : HIGH;
    const { left, width } = this.place;
    this.boxes.push({ name, label, kind, layer, isFolded, x: left, at: this.at, width, height });
    this.at += height;
  }

  /** A sum as a circle; it opens like a box. */
  sum(name, label, layer = null) {
    const size = 2 * RADIUS;
    const x = this.middle - RADIUS;
    this.boxes.push({ name, label, kind: "sum", layer, x, at: this.at, width: size, height: size });
    this.at += size;
  }

  /** The sum with the positions, which come from outside. */
  positions(name, label, sumName, sumLabel) {
    this.arrow();
    const { left, width, outer } = this.place;
    const side = width / 2 - RADIUS - BESIDE + OVERHANG;
    const x = outer < 0 ? left - OVERHANG : this.middle + RADIUS + BESIDE;
    this.boxes.push({ name, label, kind: "positions", layer: null, x, at: this.at - 3, width: side, height: LOW });
    const middle = this.at + RADIUS;
    this.line([outer < 0 ? x + side : x, middle, this.middle + outer * RADIUS, middle], { isArrow: true });
    this.sum(sumName, sumLabel);
  }

  /** A residual branch from a height to another, into a sum or a box. */
  residual(from, to, reach, note) {
    const { lane, outer } = this.place;
    const end = this.middle + outer * reach;
    this.line([this.middle, from, lane, from, lane, to, end, to], { isArrow: true, className: "residual" });
    const anchor = outer < 0 ? "start" : "end";
    if (note) this.text(lane - 4 * outer, (from + to) / 2, note, { anchor });
  }

  /** A sublayer with its residual branch; the norm stands where this model has it. */
  sublayer({ prefix, label, kind, layer, isPost, last, alpha }) {
    const after = last ? `${prefix.split(".").slice(0, 2).join(".")}.output` : `${prefix}.stream`;
    const note = alpha === 1 ? null : `× ${Number(alpha.toPrecision(3))}`;
    const from = this.at + 4;
    if (!isPost) this.box(`${prefix}.norm`, say("figure.norm"), "norm", { isLow: true, layer });
    this.box(prefix, label, kind, { layer });
    if (kind === "cross") this.reads.push(this.at - HIGH / 2);
    if (isPost) {
      this.box(after, say("figure.add_norm"), "norm", { isLow: true, layer });
      this.residual(from, this.at - LOW / 2, this.place.width / 2, note);
    } else {
      this.arrow();
      this.residual(from, this.at + RADIUS, RADIUS, note);
      this.sum(after, say("figure.sum"), layer);
    }
  }

  /** A layer in full, with a frame around it. */
  open(title, draw) {
    const [x, to] = this.place.frame;
    this.line([this.middle, this.at, this.middle, this.at + 10]);
    this.at += 10;
    const from = this.at - 2;
    draw();
    this.at += 4;
    this.text(x + 8, this.at + 5, title, { anchor: "start" });
    this.at += LINE + 4;
    this.frames.push({ x, to, at: from, top: this.at - 2 });
    this.line([this.middle, this.at - LINE - 8, this.middle, this.at]);
  }

  /** A layer as one box, which opens it. */
  folded(name, title, layer, isReading) {
    this.box(name, title, "layer", { isFolded: true, layer });
    if (isReading) this.reads.push(this.at - HIGH / 2);
  }

  /** A step without a tensor of its own. */
  note(text) {
    this.arrow();
    const { left, width } = this.place;
    this.frames.push({ x: left, to: left + width, at: this.at, top: this.at + LOW, className: "note" });
    this.text(this.middle, this.at + 9, text);
    this.at += LOW;
  }
}
