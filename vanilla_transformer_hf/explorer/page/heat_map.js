// A matrix as coloured cells on a canvas. Only cells that are seen are drawn: 512 × 512 stay fluid.

import { readableOn, scaleFor, themed } from "./colors.js";
import { announce, contextOf, html, idOf, number, oncePerFrame, range, scrolled } from "./dom.js";
import { onPaper, pictured } from "./keep.js";
import { say } from "./texts.js";

// Pixels of a cell in which a number can be read.
const READABLE = 38;
const LARGEST_PICTURE = 6000;

// Where the cursor was last: a map that is drawn again has it there.
let lastCursor = { id: "", row: -1, column: -1 };

/** Pixels for a map in one of `columns` columns of the view, without the labels of its rows. */
export function roomFor(columns, rowLabels) {
  const width = document.getElementById("view").clientWidth - 2 * 20;
  return Math.floor((width - 24 * (columns - 1)) / columns) - leftOf(rowLabels) - 4;
}

/** Pixels for the labels of rows. */
function leftOf(rowLabels) {
  return 14 + 7 * Math.min(14, Math.max(...rowLabels.map((text) => text.length), 1));
}

/** A number that fits into a cell; the readout has all of its digits. */
function short(value) {
  const size = Math.abs(value);
  if (Number.isNaN(size)) return "–";
  if (size > 1e30) return value < 0 ? "−∞" : "∞";
  if (size < 0.0005) return "0";
  return String(Number(value.toPrecision(size < 0.1 ? 1 : size >= 100 ? 3 : 2))).replace("-", "−");
}

/**
 * A map with its readout and buttons.
 *
 * Options: title; id (the title's if missing); values (Float32Array); columns (their number, where
 * columnLabels are missing); rowLabels, columnLabels (arrays of text; numbers if missing); cell
 * (pixels); scale; marked (row that is pinned); pick (called with row and column on click or Enter).
 */
export function heatMap(options) {
  const { title, values, pick } = options;
  const columns = options.columns ?? options.columnLabels.length;
  const rows = options.rowLabels?.length ?? values.length / columns;
  const rowLabels = options.rowLabels ?? range(rows).map(String);
  const columnLabels = options.columnLabels ?? range(columns).map(String);
  const cell = options.cell ?? Math.max(4, Math.min(26, Math.floor(900 / columns)));
  const cellHeight = Math.max(cell, options.columnLabels || rows < 40 ? Math.min(18, cell + 14) : cell);
  const scale = options.scale ?? scaleFor(values);
  const left = leftOf(rowLabels);
  const top = options.columnLabels
    ? 14 + 6 * Math.min(14, Math.max(...columnLabels.map((text) => text.length), 1))
    : 22;
  const width = left + columns * cell + 2,
    height = top + rows * cellHeight + 2;
  const id = `map-${options.id ?? idOf(title)}`;
  const isSame = lastCursor.id === id && lastCursor.row < rows && lastCursor.column < columns;
  let cursor = isSame ? lastCursor : { row: -1, column: -1 };

  const canvas = html("canvas", { class: "map-canvas" });
  const spacer = html("div", { class: "map-spacer" });
  const scroller = html(
    "div",
    { class: "map", id, tabindex: 0, role: "group", "aria-label": say("map.label", { title, rows, columns }) },
    canvas,
    spacer,
  );
  const readout = html("output", { class: "readout" }, "");

  /** Draw what lies in a window of the map onto a context. */
  function paint(context, x, y, seenWidth, seenHeight) {
    const firstRow = Math.max(0, Math.floor(y / cellHeight)),
      lastRow = Math.min(rows, Math.ceil((y + seenHeight) / cellHeight));
    const firstColumn = Math.max(0, Math.floor(x / cell)),
      lastColumn = Math.min(columns, Math.ceil((x + seenWidth) / cell));
    context.save();
    context.beginPath();
    context.rect(left, top, seenWidth - left, seenHeight - top);
    context.clip();
    const isRead = cell >= READABLE;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = "11px sans-serif";
    const gap = cell > 6 ? 1 : 0;
    for (let row = firstRow; row < lastRow; row++) {
      for (let column = firstColumn; column < lastColumn; column++) {
        const value = values[row * columns + column];
        const color = scale(value);
        context.fillStyle = color;
        const cellX = left + column * cell - x,
          cellY = top + row * cellHeight - y;
        context.fillRect(cellX, cellY, cell - gap, cellHeight - gap);
        if (isRead) {
          context.fillStyle = readableOn(color);
          context.fillText(short(value), cellX + cell / 2, cellY + cellHeight / 2);
        }
      }
    }
    if (cursor.row >= 0) {
      context.strokeStyle = themed("accent");
      context.lineWidth = 2;
      const [cellX, cellY] = [left + cursor.column * cell - x, top + cursor.row * cellHeight - y];
      context.strokeRect(cellX, cellY, cell - gap, cellHeight - gap);
    }
    context.restore();
    // The labels.
    context.font = "12px sans-serif";
    const rowEvery = Math.ceil(13 / cellHeight),
      columnEvery = Math.ceil((options.columnLabels ? 13 : 30) / cell);
    context.save();
    context.beginPath();
    context.rect(0, top, left, seenHeight - top);
    context.clip();
    context.textAlign = "right";
    for (let row = firstRow; row < lastRow; row++) {
      if (row % rowEvery && row !== cursor.row) continue;
      context.fillStyle = row === options.marked || row === cursor.row ? themed("accent") : themed("ink");
      context.fillText(rowLabels[row].slice(0, 15), left - 6, top + row * cellHeight - y + cellHeight / 2);
    }
    context.restore();
    context.save();
    context.beginPath();
    context.rect(left, 0, seenWidth - left, top);
    context.clip();
    for (let column = firstColumn; column < lastColumn; column++) {
      if (column % columnEvery && column !== cursor.column) continue;
      context.fillStyle = column === cursor.column ? themed("accent") : themed("ink");
      context.save();
      // A number that is wider than the first column begins at its edge.
      const half = options.columnLabels ? 0 : context.measureText(columnLabels[column]).width / 2;
      context.translate(left - x + Math.max(column * cell + cell / 2, half), top - 5);
      if (options.columnLabels) context.rotate(-Math.PI / 2);
      context.textAlign = options.columnLabels ? "left" : "center";
      context.fillText(columnLabels[column].slice(0, 15), 0, options.columnLabels ? 0 : -4);
      context.restore();
    }
    context.restore();
  }

  const draw = oncePerFrame(() => {
    const seenWidth = Math.min(width, scroller.clientWidth),
      seenHeight = Math.min(height, scroller.clientHeight);
    if (!seenWidth || !seenHeight) return;
    spacer.style.width = `${width}px`;
    spacer.style.height = `${height}px`;
    spacer.style.marginTop = `${-seenHeight}px`;
    const context = onPaper(contextOf(canvas, seenWidth, seenHeight), seenWidth, seenHeight);
    paint(context, scroller.scrollLeft, scroller.scrollTop, seenWidth, seenHeight);
  });

  function tell(row, column, isSpoken) {
    cursor = lastCursor = { id, row, column };
    const value = values[row * columns + column];
    const text = `${rowLabels[row]}, ${columnLabels[column]}: ${number(value, 7)}`;
    readout.textContent = text;
    if (isSpoken) announce(text);
    draw();
  }

  function cellAt(event) {
    const box = scroller.getBoundingClientRect();
    const inX = event.clientX - box.left - scroller.clientLeft,
      inY = event.clientY - box.top - scroller.clientTop;
    if (inX < left || inY < top) return null;
    const row = Math.floor((inY - top + scroller.scrollTop) / cellHeight);
    const column = Math.floor((inX - left + scroller.scrollLeft) / cell);
    return row < rows && column < columns ? { row, column } : null;
  }

  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  scroller.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && cursor.row >= 0) pick?.(cursor.row, cursor.column);
    if (!(event.key in MOVES)) return;
    event.preventDefault();
    const [down, right] = MOVES[event.key];
    const row = Math.min(rows - 1, Math.max(0, cursor.row + down)),
      column = Math.min(columns - 1, Math.max(0, cursor.column + right));
    const x = column * cell,
      y = row * cellHeight;
    const seenX = scroller.clientWidth - left - cell,
      seenY = scroller.clientHeight - top - cellHeight;
    scroller.scrollLeft = Math.min(x, Math.max(scroller.scrollLeft, x - seenX));
    scroller.scrollTop = Math.min(y, Math.max(scroller.scrollTop, y - seenY));
    tell(row, column, true);
  });
  scroller.addEventListener("pointermove", (event) => {
    const found = cellAt(event);
    if (found && (found.row !== cursor.row || found.column !== cursor.column)) tell(found.row, found.column, false);
  });
  scroller.addEventListener("click", (event) => {
    const found = cellAt(event);
    if (found) pick?.(found.row, found.column);
  });
  scrolled(scroller, height + 16, draw);

  const size = [Math.min(LARGEST_PICTURE, width), Math.min(LARGEST_PICTURE, height)];
  const whole = { width: size[0], height: size[1], paint: (context) => paint(context, 0, 0, ...size) };
  return pictured(html("strong", {}, title), title, whole, scroller, readout);
}
