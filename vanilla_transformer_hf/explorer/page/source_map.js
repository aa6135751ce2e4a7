// Attention over what a model hears or sees: the spectrogram or the image, and below it a row of
// weights for each token. Where the positions lie beside each other, the rows have its columns.

import { tensor } from "./api.js";
import { linePiece } from "./attention_lines.js";
import { parse, themed } from "./colors.js";
import { announce, contextOf, html, oncePerFrame, percent, range, roving, strongest } from "./dom.js";
import { roomFor } from "./heat_map.js";
import { pictured } from "./keep.js";
import { say } from "./texts.js";

const ROW = 24; // pixels of a row whose columns are those of the picture
const SMALL = 72; // of a row that has a small picture
const AXIS = 20; // of the time below a spectrogram
const WIDEST = 1000;
const HIGHEST = 420;

/** [red, green, blue] of a place: an image's own colours, a spectrogram's of the theme. */
function pixels({ kind, picture }) {
  const { shape, values } = tensor(picture);
  const [rows, columns, channels = 1] = shape;
  const quiet = parse(themed("cell"));
  const loud = parse(themed("ink"));
  return (row, column) => {
    const at = (row * columns + column) * channels;
    if (channels === 3) return [0, 1, 2].map((one) => Math.round(255 * values[at + one]));
    if (kind === "image") return Array(3).fill(Math.round(255 * values[at]));
    const share = Math.min(1, Math.max(0, (values[at] + 1.5) / 4.5)); // mean 0, deviation 1
    return quiet.map((value, one) => Math.round(value + (loud[one] - value) * share));
  };
}

/** What a position's cell is, in pixels of a picture of another size. */
function scaled(source, width, height) {
  const [rows, columns] = source.picture.shape;
  const { values } = tensor(source.cells);
  return (place) => {
    const [left, top, right, bottom] = values.subarray(4 * place, 4 * place + 4);
    const x = (left * width) / columns;
    const y = (top * height) / rows;
    return [x, y, (right * width) / columns - x, (bottom * height) / rows - y];
  };
}

/** The picture as a canvas with a pixel for each of its places. */
function canvasOf(source) {
  const [height, width] = source.picture.shape;
  const colour = pixels(source);
  const data = new ImageData(width, height);
  for (let place = 0; place < width * height; place++) {
    data.data.set([...colour(Math.floor(place / width), place % width), 255], 4 * place);
  }
  const canvas = html("canvas", { width, height });
  canvas.getContext("2d").putImageData(data, 0, 0);
  return canvas;
}

/** Paint the picture at a place of a context; an SVG has a shape for each of its places. */
function paintSource(context, source, x, y, width, height) {
  if ("drawImage" in context) {
    context.imageSmoothingEnabled = false;
    context.drawImage(canvasOf(source), x, y, width, height);
    return;
  }
  const [rows, columns] = source.picture.shape;
  const colour = pixels(source);
  const [wide, high] = [width / columns, height / rows];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      context.fillStyle = `rgb(${colour(row, column).join(",")})`;
      context.fillRect(x + column * wide, y + row * high, wide + 0.4, high + 0.4);
    }
  }
}

/** The seconds at which an axis has marks. */
function ticks(seconds) {
  const step = [0.1, 0.2, 0.5, 1, 2, 5].find((one) => seconds / one <= 10) ?? 10;
  return range(Math.floor(seconds / step) + 1).map((place) => place * step);
}

function paintAxis(context, source, x, y, width) {
  const columns = source.picture.shape[1];
  if (source.seconds === null) return;
  context.font = "12px sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = themed("ink");
  const end = columns * source.seconds;
  for (const second of ticks(end)) {
    const at = x + (second / end) * width;
    context.fillRect(at, y, 1, 4);
    if (at < x + width - 32) context.fillText(`${Number(second.toFixed(1))} s`, at + 3, y + 10);
  }
}

/** Width and height of a picture in the room that the view has. */
function sizeOf({ kind, picture }, left) {
  const [rows, columns] = picture.shape;
  const room = Math.max(160, Math.min(WIDEST, roomFor(1, [""]) - left));
  if (kind === "speech") return [room, 160];
  const scale = Math.min(room / columns, HIGHEST / rows);
  return [Math.floor(columns * scale), Math.floor(rows * scale)];
}

/** The picture alone. */
export function plainSource(source, name) {
  const [width, height] = sizeOf(source, 0);
  const below = source.seconds === null ? 0 : AXIS;
  const canvas = html("canvas", { class: "source-picture", role: "img", "aria-label": name });
  const context = contextOf(canvas, width, height + below);
  paintSource(context, source, 0, 0, width, height);
  paintAxis(context, source, 0, height, width);
  return canvas;
}

/**
 * Options: title; source (the answer of "source"); values (rows × positions); rowLabels; pinned
 * (row whose weights lie over the picture, or -1); pin (called with a row); about ("attention" or
 * "analyse": what the weights are).
 */
export function sourceMap({ title, source, values, rowLabels, pinned, pin, about = "attention" }) {
  const count = source.names.length;
  const cells = tensor(source.cells).values;
  const inRow = cells.every((value, place) => place % 4 !== 1 || value === cells[1]); // all positions lie in one row
  const row = inRow ? ROW : SMALL;
  const left = 28 + 9 * Math.min(10, Math.max(...rowLabels.map((text) => text.length), 3));
  const [width, height] = sizeOf(source, left);
  const top = height + (source.seconds === null ? 6 : AXIS);
  const [rows, columns] = source.picture.shape;
  const strip = inRow ? width : Math.min(width, Math.round(((row - 4) * columns) / rows));
  const over = scaled(source, width, height);
  const inStrip = scaled(source, strip, row - 2);
  const total = { width: left + Math.max(width, strip), height: top + row * rowLabels.length + 2 };
  let hovered = -1;
  let position = -1;
  const weightsOf = (place) => values.subarray(place * count, (place + 1) * count);

  const still = canvasOf(source);

  function paintWeights(context, weights, x, y, box) {
    context.fillStyle = themed("below");
    weights.forEach((weight, place) => {
      if (weight < 0.002) return;
      const [cellX, cellY, cellWidth, cellHeight] = box(place);
      context.globalAlpha = Math.min(1, Math.sqrt(weight));
      context.fillRect(x + cellX, y + cellY, cellWidth, cellHeight);
    });
    context.globalAlpha = 1;
  }

  /** The rows of weights, and what lies over the picture. */
  function paintRest(context) {
    paintAxis(context, source, left, height, width);
    const chosen = hovered >= 0 ? hovered : pinned;
    if (chosen >= 0 && chosen < rowLabels.length) {
      context.fillStyle = themed("paper");
      context.globalAlpha = 0.35;
      context.fillRect(left, 0, width, height);
      context.globalAlpha = 1;
      paintWeights(context, weightsOf(chosen), left, 0, over);
    }
    rowLabels.forEach((_, place) => {
      const y = top + place * row;
      context.fillStyle = themed("cell");
      context.fillRect(left, y, strip, row - 2);
      paintWeights(context, weightsOf(place), left, y, inStrip);
      if (place !== chosen) return;
      context.strokeStyle = themed("accent");
      context.lineWidth = 1.5;
      context.strokeRect(left + 1, y + 1, strip - 2, row - 4);
    });
    if (position < 0) return;
    const [x, y, wide, high] = over(position);
    context.strokeStyle = themed("accent");
    context.lineWidth = 2;
    context.strokeRect(left + x, y, wide, inRow ? total.height - 2 : high);
  }

  const canvas = html("canvas", { class: "map-canvas", "aria-hidden": "true" });
  const draw = oncePerFrame(() => {
    const context = contextOf(canvas, total.width, total.height);
    context.imageSmoothingEnabled = false;
    context.drawImage(still, left, 0, width, height);
    paintRest(context);
  });

  const readout = html("output", { class: "readout" }, say("source.point"));

  function tell(text) {
    readout.textContent = text;
    draw();
    return text;
  }
  function tellRow(place) {
    hovered = place;
    const others = source.names.map((name, one) => ({ name, weight: values[place * count + one] }));
    return tell(strongest(`${about}.row`, rowLabels[place], others));
  }
  function tellPosition(place) {
    position = place;
    const others = rowLabels.map((name, one) => ({ name, weight: values[one * count + place] }));
    return tell(strongest(`${about}.column`, source.names[place], others));
  }
  function leave() {
    hovered = -1;
    draw();
  }

  const names = rowLabels.map((text, place) => {
    const isPinned = place === pinned;
    const style = `top:${top + place * row}px;height:${row - 2}px;width:${left - 6}px`;
    const choose = () => pin(isPinned ? -1 : place);
    return linePiece(`row-${place}`, text, { isPinned, style, show: () => tellRow(place), hide: leave, choose });
  });

  /** The position under the pointer, or -1. */
  function positionAt(x, y) {
    const isOver = y < height;
    const box = isOver ? over : inStrip;
    const at = [x - left, isOver ? y : (y - top) % row];
    if (at[0] < 0 || (!isOver && y < top)) return -1;
    return source.names.findIndex((_, place) => {
      const [cellX, cellY, wide, high] = box(place);
      return at[0] >= cellX && at[0] < cellX + wide && at[1] >= cellY && at[1] < cellY + high;
    });
  }
  function point(event) {
    const box = sheet.getBoundingClientRect();
    const y = event.clientY - box.top;
    const place = positionAt(event.clientX - box.left, y);
    const one = Math.floor((y - top) / row);
    if (place < 0) return;
    if (y < height) return tellPosition(place);
    if (one < 0 || one >= rowLabels.length) return;
    [hovered, position] = [one, place];
    const others = `${source.names[place]} ${percent(values[one * count + place])}`;
    tell(say(`${about}.row`, { name: rowLabels[one], others }));
  }
  const step = inRow ? 1 : Math.round(columns / (cells[2] || 1));
  const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -step, ArrowDown: step };
  const picture = html("div", {
    class: "source-focus",
    id: `source-${source.kind}`,
    tabindex: 0,
    role: "group",
    "aria-label": say("source.label", { title, count }),
    style: `left:${left}px;width:${width}px;height:${height}px`,
    keydown: (event) => {
      if (!(event.key in MOVES)) return;
      event.preventDefault();
      announce(tellPosition(Math.min(count - 1, Math.max(0, position + MOVES[event.key]))));
    },
  });
  const sheet = html(
    "div",
    {
      class: "source-sheet",
      style: `width:${total.width}px;height:${total.height}px`,
      pointermove: point,
      pointerleave: () => {
        if (document.activeElement !== picture) position = -1;
        leave();
      },
    },
    canvas,
    picture,
    roving(html("div", { role: "group", "aria-label": say("source.tokens") }, names)),
  );
  draw();
  if (pinned >= 0 && pinned < rowLabels.length) {
    tellRow(pinned);
    hovered = -1;
  }

  function paintWhole(context) {
    paintSource(context, source, left, 0, width, height);
    paintRest(context);
    context.font = "13px sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = themed("ink");
    rowLabels.forEach((text, place) => context.fillText(text.slice(0, 14), left - 8, top + place * row + row / 2));
  }
  return pictured(readout, title, { ...total, paint: paintWhole }, html("div", { class: "source-scroll" }, sheet));
}
