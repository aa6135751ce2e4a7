// All heads of all layers as small maps; a click opens one.

import { sequential } from "./colors.js";
import { button, contextOf, html, row, table, themed } from "./dom.js";
import { pictured } from "./keep.js";
import { roving } from "./roving.js";
import { say } from "./texts.js";

const SIDE = 112;

/**
 * Weights { shape: [layers, heads, rows, columns], values }, of which each layer has so many heads
 * as `counts` says; `open` is called with a layer's number and a head.
 */
export function headGrid({ shape, values }, layers, counts, open) {
  const [, heads, rows, columns] = shape,
    scale = sequential(1);
  const wide = Math.max(columns, rows),
    width = Math.max(28, Math.round((SIDE * columns) / wide)),
    height = Math.max(28, Math.round((SIDE * rows) / wide));

  function paint(context, x, y, place) {
    const start = place * rows * columns;
    context.fillStyle = themed("cell");
    context.fillRect(x, y, width, height);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        context.fillStyle = scale(values[start + row * columns + column]);
        context.fillRect(
          x + (column * width) / columns,
          y + (row * height) / rows,
          width / columns + 0.5,
          height / rows + 0.5,
        );
      }
    }
  }
  const nameOf = {
    layer: (layer) => say("figure.layer", { number: layer }),
    head: (head) => say("head.of", { head }),
  };
  const rowsOfMaps = layers.map((layer, index) => {
    const cells = Array.from({ length: counts[layer] }, (_, head) => {
      const canvas = html("canvas");
      paint(contextOf(canvas, width, height), 0, 0, index * heads + head);
      const name = say("attention.open", { layer: nameOf.layer(layer), head: nameOf.head(head) });
      return button(canvas, () => open(layer, head), { class: "small-map", "aria-label": name });
    });
    return row({}, nameOf.layer(layer), cells);
  });
  const names = Array.from({ length: heads }, (_, head) => nameOf.head(head));

  const left = 70, // of the names of layers in the whole picture
    top = 24;
  function paintWhole(context, whole) {
    context.fillStyle = themed("paper");
    context.fillRect(0, 0, whole.width, whole.height);
    context.font = "12px sans-serif";
    context.fillStyle = themed("ink");
    names.forEach((name, head) => context.fillText(name, left + head * (width + 8), 14));
    layers.forEach((layer, index) => {
      const y = top + index * (height + 8);
      context.fillStyle = themed("ink");
      context.fillText(nameOf.layer(layer), 6, y + height / 2);
      for (let head = 0; head < counts[layer]; head++)
        paint(context, left + head * (width + 8), y, index * heads + head);
    });
  }
  function whole() {
    const size = { width: left + heads * (width + 8), height: top + layers.length * (height + 8) };
    return { ...size, paint: (context) => paintWhole(context, size) };
  }
  const help = html("span", { class: "small" }, say("attention.grid_help"));
  const maps = roving(table({ class: "grid" }, ["", ...names], rowsOfMaps));
  return pictured(help, "all-heads", whole, html("div", { class: "scroll" }, maps));
}
