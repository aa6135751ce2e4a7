// A drawing context that writes SVG: the part of CanvasRenderingContext2D that the pictures use.

import { say } from "./texts.js";

// A map of 512 × 512 cells has 262,144 of them. Files with more are too large for most programs.
const MOST_SHAPES = 300_000;
const ANCHORS = { left: "start", center: "middle", right: "end" };

const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const round = (value) => Math.round(100 * value) / 100;

export class SvgContext {
  fillStyle = "#000";
  strokeStyle = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "10px sans-serif";
  textAlign = "left";
  textBaseline = "alphabetic";
  #parts = [];
  #path = [];
  #saved = [];
  #open = 0; // groups since the last save
  #clips = 0;
  #shapes = 0;

  #add(shape) {
    this.#shapes += 1;
    if (this.#shapes > MOST_SHAPES) {
      throw new RangeError(say("fault.svg", { most: MOST_SHAPES.toLocaleString(document.documentElement.lang) }));
    }
    this.#parts.push(shape);
  }

  #group(attributes) {
    this.#parts.push(`<g ${attributes}>`);
    this.#open += 1;
  }

  #paint(kind, color) {
    const alpha = this.globalAlpha < 1 ? ` opacity="${round(this.globalAlpha)}"` : "";
    return kind === "fill"
      ? `fill="${escaped(color)}"${alpha}`
      : `fill="none" stroke="${escaped(color)}" stroke-width="${round(this.lineWidth)}"${alpha}`;
  }

  #box(x, y, width, height) {
    return `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;
  }

  clearRect() {} // an SVG is empty at first

  fillRect(...box) {
    this.#add(`<rect ${this.#box(...box)} ${this.#paint("fill", this.fillStyle)}/>`);
  }

  strokeRect(...box) {
    this.#add(`<rect ${this.#box(...box)} ${this.#paint("stroke", this.strokeStyle)}/>`);
  }

  fillText(text, x, y) {
    const [, size, family] = /([\d.]+)px (.*)/.exec(this.font);
    const middle = this.textBaseline === "middle" ? ' dominant-baseline="central"' : "";
    const anchor = `text-anchor="${ANCHORS[this.textAlign]}"${middle}`;
    const type = `font-size="${size}" font-family="${escaped(family)}" ${anchor}`;
    const color = this.#paint("fill", this.fillStyle);
    this.#add(`<text x="${round(x)}" y="${round(y)}" ${type} ${color}>${escaped(text)}</text>`);
  }

  beginPath() {
    this.#path = [];
  }

  rect(x, y, width, height) {
    this.#path.push(`M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}z`);
  }

  moveTo(x, y) {
    this.#path.push(`M${round(x)} ${round(y)}`);
  }

  bezierCurveTo(...points) {
    this.#path.push(`C${points.map(round).join(" ")}`);
  }

  stroke() {
    this.#add(`<path d="${this.#path.join("")}" ${this.#paint("stroke", this.strokeStyle)}/>`);
  }

  clip() {
    const name = `clip-${this.#clips++}`;
    this.#parts.push(`<clipPath id="${name}"><path d="${this.#path.join("")}"/></clipPath>`);
    this.#group(`clip-path="url(#${name})"`);
  }

  translate(x, y) {
    this.#group(`transform="translate(${round(x)} ${round(y)})"`);
  }

  rotate(angle) {
    this.#group(`transform="rotate(${round((180 * angle) / Math.PI)})"`);
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline } = this;
    this.#saved.push([{ fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline }, this.#open]);
    this.#open = 0;
  }

  restore() {
    const [styles, open] = this.#saved.pop();
    this.#parts.push("</g>".repeat(this.#open));
    this.#open = open;
    Object.assign(this, styles);
  }

  /** The picture as the text of a file. */
  text(width, height) {
    const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
    const ends = "</g>".repeat(this.#open);
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${this.#parts.join("")}${ends}</svg>`;
  }
}
