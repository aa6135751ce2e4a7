// Keeping: the whole page as one file, and single pictures as PNG or SVG.

import { answersFor } from "./api.js";
import { themed } from "./colors.js";
import { button, html } from "./dom.js";
import { writeState } from "./state.js";
import { say } from "./texts.js";

function download(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Save the page with the answers about the sentence that is shown. */
export async function savePage(state) {
  const page = await (await fetch("/offline.html")).text();
  const saved = JSON.stringify({ state: writeState(state), answers: await answersFor(state.text) });
  const start = page.indexOf(">", page.indexOf('<script id="answers"')) + 1;
  const text = page.slice(0, start) + saved.replaceAll("<", "\\u003c") + page.slice(page.indexOf("</script>", start));
  download("explorer.html", new Blob([text], { type: "text/html" }));
}

/** An SVG element as text, with the theme's colours written into it. */
function svgText(picture) {
  const copy = picture.cloneNode(true);
  const originals = [picture, ...picture.querySelectorAll("*")],
    copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, place) => {
    const style = getComputedStyle(original);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "text-anchor"]) {
      copies[place].setAttribute(name, style.getPropertyValue(name));
    }
  });
  copy.setAttribute("font-family", "sans-serif");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const background = getComputedStyle(document.body).backgroundColor;
  copy.setAttribute("style", `background:${background}`);
  return new XMLSerializer().serializeToString(copy);
}

async function svgCanvas(picture) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(picture))}`;
  await image.decode();
  const canvas = html("canvas", { width: 2 * picture.width.baseVal.value, height: 2 * picture.height.baseVal.value });
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** A context with the paper of the theme. */
export function onPaper(context, width, height) {
  context.fillStyle = themed("paper");
  context.fillRect(0, 0, width, height);
  return context;
}

/** A drawing { width, height, paint(context) } on paper, as a canvas or as the text of an SVG. */
function drawn({ width, height, paint }, kind) {
  const canvas = html("canvas", { width, height });
  const context = onPaper(kind === "svg" ? new SvgContext() : canvas.getContext("2d"), width, height);
  paint(context);
  return kind === "svg" ? context.text(width, height) : canvas;
}

/** Buttons that save a picture, an SVG element or a drawing. */
export function pictureButtons(title, picture) {
  const name = title.replaceAll(/[ ,，：:]+/g, "-");
  let problem = null;
  const write = async (kind) => {
    const isDrawing = !(picture instanceof SVGElement);
    const made = isDrawing ? drawn(picture, kind) : kind === "svg" ? svgText(picture) : await svgCanvas(picture);
    if (kind === "svg") download(`${name}.svg`, new Blob([made], { type: "image/svg+xml" }));
    else made.toBlob((blob) => download(`${name}.png`, blob));
  };
  const save = async (kind) => {
    problem?.remove();
    try {
      await write(kind);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error; // too large
      problem = html("span", { class: "error", role: "alert" }, error.message);
      buttons.append(problem);
    }
  };
  const buttons = html("span", { class: "save" }, [
    ["PNG", "SVG"].map((kind) =>
      button(kind, () => save(kind.toLowerCase()), { "aria-label": say("page.save_as", { name, kind }) }),
    ),
  ]);
  return buttons;
}

/** A picture with what stands above it and the buttons that save it. */
export function pictured(caption, name, picture, ...body) {
  return html("figure", { class: "heat" }, html("figcaption", {}, caption, pictureButtons(name, picture)), body);
}

// ---------------------------------------------------- SVG: the part of CanvasRenderingContext2D that the pictures use

// A map of 512 × 512 cells has 262,144 of them. Files with more are too large for most programs.
const MOST_SHAPES = 300_000;
const ANCHORS = { left: "start", center: "middle", right: "end" };

const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const round = (value) => Math.round(100 * value) / 100;

class SvgContext {
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
