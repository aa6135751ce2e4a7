// q · k of one query and one key, dimension by dimension, and of that query and all keys.

import { tensor } from "./api.js";
import { html, number, section, small } from "./dom.js";
import { heatMap, roomFor } from "./heat_map.js";
import { say } from "./texts.js";

const CELL = { least: 5, most: 44 };

/** "/ √64", where the scale is that of the paper, else "× 0.5". */
export function scaleText(scale, width) {
  const isRoot = Math.abs(scale * scale * width - 1) < 1e-4;
  return isRoot ? `/ √${width}` : `× ${number(scale)}`;
}

/** The section of the Head view; `pick` chooses a key. */
export function productsSection(found, { row, column, rowLabels, columnLabels }, pick) {
  const width = found.query.shape[1];
  const query = tensor(found.query).values.subarray(row * width, (row + 1) * width);
  const keys = tensor(found.key).values;
  const products = keys.map((value, at) => value * query[at % width]);
  const key = keys.subarray(column * width, (column + 1) * width);
  const product = products.subarray(column * width, (column + 1) * width);
  const at = row * columnLabels.length + column;
  const value = (name) => number(tensor(found[name]).values[at]);
  const names = ["q", "k", "q × k"];
  const cellOf = (labels) => Math.max(CELL.least, Math.min(CELL.most, Math.floor(roomFor(1, labels) / width)));
  const sum = [
    `q · k = ${value("products")}`,
    `${scaleText(found.scale, width)} = ${value("scaled")}`,
    `+ ${value("mask")} (${say("products.mask")})`,
    `softmax → ${value("weights")}`,
  ];
  const about = { query: rowLabels[row], key: columnLabels[column], width };
  return section(
    say("products.title"),
    small(say("products.about", about)),
    heatMap({
      id: "products-one",
      title: say("products.one", about),
      values: Float32Array.from([...query, ...key, ...product]),
      rows: 3,
      columns: width,
      rowLabels: names,
      cell: cellOf(names),
    }),
    html("p", { id: "products-sum" }, sum.join("  ")),
    heatMap({
      id: "products-all",
      title: say("products.all", about),
      values: products,
      rows: columnLabels.length,
      columns: width,
      rowLabels: columnLabels,
      cell: cellOf(columnLabels),
      marked: column,
      pick,
    }),
  );
}
