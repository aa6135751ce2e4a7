// Lines between two columns of tokens, as in BertViz. Only lines of rows that are seen are drawn.

import { announce, contextOf, html, oncePerFrame, percent, themed } from "./dom.js";
import { pictureButtons } from "./keep.js";
import { roving } from "./roving.js";

const ROW = 24;
const TOP = 6;

/**
 * Options: title; maps (values of rows × columns, and a colour; null is the theme's), rowLabels,
 * columnLabels; threshold (weights below it are not drawn); pinned, pinnedColumn (row or column
 * whose lines alone are drawn, or -1); pin (called with both).
 */
export function attentionLines({ title, maps, rowLabels, columnLabels, threshold, pinned, pinnedColumn, pin }) {
  const rows = rowLabels.length,
    columns = columnLabels.length;
  const height = 2 * TOP + ROW * Math.max(rows, columns);
  let hovered = { row: -1, column: -1 };
  const canvas = html("canvas", { class: "map-canvas", "aria-hidden": "true" });
  const readout = html("output", { class: "readout" }, "Point at a token, or choose one to pin it.");
  const isAlone = (row, column) => {
    const wanted = hovered.row >= 0 || hovered.column >= 0 ? hovered : { row: pinned, column: pinnedColumn };
    if (wanted.row >= 0) return row === wanted.row;
    return wanted.column >= 0 ? column === wanted.column : true;
  };

  /** What a token attends to most, or what attends to it. */
  function describe(side, place) {
    const values = maps[0].values,
      others = side === "row" ? columns : rows;
    const found = Array.from({ length: others }, (_, other) => {
      const index = side === "row" ? place * columns + other : other * columns + place;
      return [maps.reduce((sum, map) => sum + map.values[index], 0) / maps.length, other];
    });
    if (!values.length) return "";
    found.sort((a, b) => b[0] - a[0]);
    const [labels, own, arrow] =
      side === "row" ? [columnLabels, rowLabels, "attends to"] : [rowLabels, columnLabels, "is attended by"];
    return `${own[place]} ${arrow} ${found
      .slice(0, 4)
      .map(([value, other]) => `${labels[other]} ${percent(value)}`)
      .join(", ")}`;
  }

  function piece(side, text, place) {
    const isPinned = side === "row" ? place === pinned : place === pinnedColumn && pinned < 0;
    const show = () => {
      hovered = side === "row" ? { row: place, column: -1 } : { row: -1, column: place };
      readout.textContent = describe(side, place);
      draw();
    };
    const hide = () => {
      hovered = { row: -1, column: -1 };
      draw();
    };
    return html(
      "button",
      {
        type: "button",
        class: "line-piece",
        id: `${side}-${place}`,
        "aria-pressed": String(isPinned),
        title: text,
        pointerenter: show,
        pointerleave: hide,
        focus: () => {
          show();
          announce(readout.textContent);
        },
        blur: hide,
        click: () => (side === "row" ? pin(isPinned ? -1 : place, -1) : pin(-1, isPinned ? -1 : place)),
      },
      text,
    );
  }
  const left = html(
    "div",
    { class: "line-side left" },
    rowLabels.map((text, place) => piece("row", text, place)),
  );
  const right = html(
    "div",
    { class: "line-side" },
    columnLabels.map((text, place) => piece("column", text, place)),
  );
  const middle = html("div", { class: "line-middle" }, canvas);
  const scroller = html(
    "div",
    { class: "lines", tabindex: -1 },
    roving(html("div", { class: "line-sheet", style: `height:${height}px` }, left, middle, right)),
  );

  /** Lines whose row or column lies in a window from `y` on. */
  function paint(context, width, y, seen) {
    const first = Math.floor((y - TOP) / ROW) - 1,
      last = Math.ceil((y + seen - TOP) / ROW) + 1;
    const isSeen = (place) => place >= first && place <= last;
    for (const [place, { values, color }] of maps.entries()) {
      const shift = 2 * (place - (maps.length - 1) / 2); // lines of several heads beside each other
      context.strokeStyle = color ?? themed("accent");
      for (let row = 0; row < rows; row++) {
        for (let column = 0; column < columns; column++) {
          const value = values[row * columns + column];
          if (value < threshold || !(isSeen(row) || isSeen(column)) || !isAlone(row, column)) continue;
          const from = TOP + row * ROW + ROW / 2 - y + shift,
            to = TOP + column * ROW + ROW / 2 - y + shift;
          context.globalAlpha = Math.min(1, 0.08 + 0.92 * value);
          context.lineWidth = 1 + 3 * value;
          context.beginPath();
          context.moveTo(0, from);
          context.bezierCurveTo(width / 3, from, (2 * width) / 3, to, width, to);
          context.stroke();
        }
      }
    }
    context.globalAlpha = 1;
  }

  const draw = oncePerFrame(() => {
    const width = middle.clientWidth,
      seen = Math.min(height, scroller.clientHeight);
    if (!width || !seen) return;
    paint(contextOf(canvas, width, seen), width, scroller.scrollTop, seen);
  });
  scroller.addEventListener("scroll", draw);
  scroller.style.height = `${Math.min(height + 4, Math.round(window.innerHeight * 0.72))}px`;
  new ResizeObserver(draw).observe(scroller);
  if (pinned >= 0 && pinned < rows) readout.textContent = describe("row", pinned);
  else if (pinnedColumn >= 0 && pinnedColumn < columns) readout.textContent = describe("column", pinnedColumn);

  /** All of it in one picture, with the tokens. */
  function paintWhole(context, side, width, tall) {
    context.fillStyle = themed("paper");
    context.fillRect(0, 0, width, tall);
    context.font = "13px sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = themed("ink");
    context.textAlign = "right";
    rowLabels.forEach((text, row) => context.fillText(text.slice(0, 20), side - 6, TOP + row * ROW + ROW / 2));
    context.textAlign = "left";
    columnLabels.forEach((text, column) =>
      context.fillText(text.slice(0, 20), width - side + 6, TOP + column * ROW + ROW / 2),
    );
    context.translate(side, 0);
    paint(context, width - 2 * side, 0, tall);
  }
  function whole() {
    const side = 150,
      width = 640,
      tall = Math.min(12_000, height);
    return { width, height: tall, paint: (context) => paintWhole(context, side, width, tall) };
  }
  return html(
    "figure",
    { class: "heat" },
    html("figcaption", {}, readout, pictureButtons(title.replaceAll(/[ ,]+/g, "-"), whole)),
    scroller,
  );
}
