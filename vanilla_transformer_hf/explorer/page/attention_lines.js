// Lines between two columns of tokens, as in BertViz. Only lines of rows that are seen are drawn.

import { themed } from "./colors.js";
import { announce, button, contextOf, html, oncePerFrame, roving, scrolled, strongest } from "./dom.js";
import { pictured } from "./keep.js";
import { say } from "./texts.js";

const ROW = 24;
const TOP = 6;

/** A token that is shown while it is pointed at, told when it has the focus, and pinned when it is chosen. */
export function linePiece(id, text, { isPinned, style, show, hide, choose }) {
  return button(text, choose, {
    class: "line-piece",
    id,
    "aria-pressed": isPinned,
    title: text,
    style,
    pointerenter: show,
    pointerleave: hide,
    focus: () => announce(show()),
    blur: hide,
  });
}

/**
 * Options: title; maps (values of rows × columns, and a colour; null is the theme's), rowLabels,
 * columnLabels; threshold (weights below it are not drawn); pinned, pinnedColumn (row or column
 * whose lines alone are drawn, or -1); pin (called with both).
 */
export function attentionLines({ title, maps, rowLabels, columnLabels, threshold, pinned, pinnedColumn, pin }) {
  const rows = rowLabels.length,
    columns = columnLabels.length;
  const height = 2 * TOP + ROW * Math.max(rows, columns);
  // A token whose lines alone are drawn: { side: "row" or "column", place }.
  const kept =
    pinned >= 0 && pinned < rows
      ? { side: "row", place: pinned }
      : pinnedColumn >= 0 && pinnedColumn < columns
        ? { side: "column", place: pinnedColumn }
        : null;
  let hovered = null;
  const canvas = html("canvas", { class: "map-canvas", "aria-hidden": "true" });
  const isAlone = (row, column) => {
    const chosen = hovered ?? kept;
    return chosen === null || chosen.place === (chosen.side === "row" ? row : column);
  };

  /** What a token attends to most, or what attends to it. */
  function describe({ side, place }) {
    const isRow = side === "row";
    const others = (isRow ? columnLabels : rowLabels).map((name, other) => {
      const index = isRow ? place * columns + other : other * columns + place;
      return { name, weight: maps.reduce((sum, map) => sum + map.values[index], 0) / maps.length };
    });
    return strongest(isRow ? "attention.row" : "attention.column", (isRow ? rowLabels : columnLabels)[place], others);
  }
  const readout = html("output", { class: "readout" }, kept ? describe(kept) : say("attention.point"));

  const pieces = (side, labels) =>
    labels.map((text, place) => {
      const isPinned = kept?.side === side && kept.place === place;
      const hide = () => {
        hovered = null;
        draw();
      };
      const show = () => {
        hovered = { side, place };
        readout.textContent = describe(hovered);
        draw();
        return readout.textContent;
      };
      const choose = () => (side === "row" ? pin(isPinned ? -1 : place, -1) : pin(-1, isPinned ? -1 : place));
      return linePiece(`${side}-${place}`, text, { isPinned, show, hide, choose });
    });
  const left = html("div", { class: "line-side left" }, pieces("row", rowLabels));
  const right = html("div", { class: "line-side" }, pieces("column", columnLabels));
  const middle = html("div", { class: "line-middle" }, canvas);
  const scroller = html("div", { class: "lines", tabindex: -1 }, [
    roving(html("div", { class: "line-sheet", style: `height:${height}px` }, left, middle, right)),
  ]);

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
  scrolled(scroller, height + 4, draw);

  /** All of it in one picture, with the tokens. */
  const side = 150,
    size = { width: 640, height: Math.min(12_000, height) };
  function paintWhole(context) {
    context.font = "13px sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = themed("ink");
    context.textAlign = "right";
    rowLabels.forEach((text, row) => context.fillText(text.slice(0, 20), side - 6, TOP + row * ROW + ROW / 2));
    context.textAlign = "left";
    columnLabels.forEach((text, column) =>
      context.fillText(text.slice(0, 20), size.width - side + 6, TOP + column * ROW + ROW / 2),
    );
    context.translate(side, 0);
    paint(context, size.width - 2 * side, 0, size.height);
  }
  return pictured(readout, title, { ...size, paint: paintWhole }, scroller);
}
