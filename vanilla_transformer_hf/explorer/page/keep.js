// Keeping: the whole page as one file, and single pictures as PNG or SVG.

import { answersFor } from "./api.js";
import { button, html } from "./dom.js";
import { writeState } from "./state.js";
import { SvgContext } from "./svg_context.js";
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
  const canvas = html("canvas", {
    width: 2 * picture.width.baseVal.value,
    height: 2 * picture.height.baseVal.value,
  });
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function drawnCanvas({ width, height, paint }) {
  const canvas = html("canvas", { width, height });
  paint(canvas.getContext("2d"));
  return canvas;
}

function drawnSvg({ width, height, paint }) {
  const context = new SvgContext();
  paint(context);
  return context.text(width, height);
}

/**
 * Buttons that save a picture; `find` gives an SVG element, or a drawing
 * { width, height, paint(context) }.
 */
export function pictureButtons(title, find) {
  const name = title.replaceAll(/[ ,，：:]+/g, "-");
  let problem = null;
  const write = async (kind) => {
    const picture = await find();
    const isDrawing = !(picture instanceof SVGElement);
    if (kind === "svg") {
      const text = isDrawing ? drawnSvg(picture) : svgText(picture);
      return download(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
    }
    const canvas = isDrawing ? drawnCanvas(picture) : await svgCanvas(picture);
    canvas.toBlob((blob) => download(`${name}.png`, blob));
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
export function pictured(caption, name, find, ...body) {
  return html("figure", { class: "heat" }, html("figcaption", {}, caption, pictureButtons(name, find)), body);
}
