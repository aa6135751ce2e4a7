// All heads of all layers as small maps; a click opens one.

import { sequential } from "./colors.js";
import { button, html, themed } from "./dom.js";
import { pictureButtons } from "./keep.js";
import { roving } from "./roving.js";

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
  const table = layers.map((layer, index) => {
    const cells = Array.from({ length: counts[layer] }, (_, head) => {
      const canvas = html("canvas", {
        width: 2 * width,
        height: 2 * height,
        style: `width:${width}px;height:${height}px`,
      });
      const context = canvas.getContext("2d");
      context.scale(2, 2);
      paint(context, 0, 0, index * heads + head);
      return html(
        "td",
        {},
        button(canvas, () => open(layer, head), {
          class: "small-map",
          "aria-label": `layer ${layer}, head ${head}: open`,
        }),
      );
    });
    return html("tr", {}, html("th", { scope: "row" }, `layer ${layer}`), cells);
  });
  const names = Array.from({ length: heads }, (_, head) => html("th", { scope: "col" }, `head ${head}`));
  function paintWhole(context, whole) {
    context.fillStyle = themed("paper");
    context.fillRect(0, 0, whole.width, whole.height);
    context.font = "12px sans-serif";
    layers.forEach((layer, index) => {
      context.fillStyle = themed("ink");
      context.fillText(`layer ${layer}`, 6, 24 + index * (height + 8) + height / 2);
      for (let head = 0; head < heads; head++) {
        if (index === 0) {
          context.fillStyle = themed("ink");
          context.fillText(`head ${head}`, 70 + head * (width + 8), 14);
        }
        if (head < counts[layer])
          paint(context, 70 + head * (width + 8), 24 + index * (height + 8), index * heads + head);
      }
    });
  }
  function whole() {
    const size = { width: 70 + heads * (width + 8), height: 24 + layers.length * (height + 8) };
    return { ...size, paint: (context) => paintWhole(context, size) };
  }
  return html(
    "figure",
    { class: "heat" },
    html(
      "figcaption",
      {},
      html("span", { class: "small" }, "Rows ask, columns answer. Choose a map to open it."),
      pictureButtons("all-heads", whole),
    ),
    html(
      "div",
      { class: "scroll" },
      roving(
        html(
          "table",
          { class: "grid" },
          html("thead", {}, html("tr", {}, html("td"), names)),
          html("tbody", {}, table),
        ),
      ),
    ),
  );
}
