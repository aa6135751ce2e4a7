// Where the parts of figure 1 stand. Heights are counted upwards from the bottom, as data flows.

const GAP = 12; // between boxes, for an arrow
const LOW = 26;
const HIGH = 38;
const LINE = 15; // of text
const RADIUS = 10; // of a sum
const BESIDE = 10; // between a sum and the box of the positions
const OVERHANG = 16; // of that box

/** Columns: where boxes, residual branches and the encoder's output run. */
export function columnsOf(isWide, hasBoth) {
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
export class Column {
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
    const shown = [...lines].reverse();
    shown.forEach((text, row) => this.text(this.middle, this.at + row * LINE + 4, text, { className }));
    this.at += shown.length * LINE + 2;
  }

  arrow() {
    this.line([this.middle, this.at, this.middle, this.at + GAP], { isArrow: true });
    this.at += GAP;
  }

  /** A box of the whole width; with the tokens' cells it is higher. */
  box(name, label, kind, { isLow = false, isFolded = false, layer = null } = {}) {
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
  sublayer({ prefix, label, kind, layer, isPost, last, alpha, texts }) {
    const after = last ? `${prefix.split(".").slice(0, 2).join(".")}.output` : `${prefix}.stream`;
    const note = alpha === 1 ? null : `× ${Number(alpha.toPrecision(3))}`;
    const from = this.at + 4;
    this.arrow();
    if (!isPost) {
      this.box(`${prefix}.norm`, texts.norm, "norm", { isLow: true, layer });
      this.arrow();
    }
    if (kind === "cross") this.reads.push(this.at + HIGH / 2);
    this.box(prefix, label, kind, { layer });
    this.arrow();
    if (isPost) {
      this.residual(from, this.at + LOW / 2, this.place.width / 2, note);
      this.box(after, texts.addNorm, "norm", { isLow: true, layer });
    } else {
      this.residual(from, this.at + RADIUS, RADIUS, note);
      this.sum(after, texts.sum, layer);
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
    this.arrow();
    if (isReading) this.reads.push(this.at + HIGH / 2);
    this.box(name, title, "layer", { isFolded: true, layer });
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
