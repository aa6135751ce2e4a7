// A chart of lines from 0 up, with the buttons that save it.

import { html, number, scroller, svg } from "./dom.js";
import { pictureButtons } from "./keep.js";

const HEIGHT = 190;
const LEFT = 44;
const RIGHT = 14;
const BOTTOM = 22;

/**
 * Options: title (for screen readers); file (name of the saved picture); width; most (value at the
 * top); farthest (place at the right); series, each { name, color, points: [{ at, value,
 * text }] }; ends (texts below the left and the right end); mark (a place with a line, or undefined).
 */
export function lineChart({ title, file, width, most, farthest, series, ends, mark }) {
  const x = (at) => LEFT + (at * (width - LEFT - RIGHT)) / Math.max(1, farthest),
    y = (value) => 8 + (1 - value / most) * (HEIGHT - BOTTOM - 8);
  const lines = series.map(({ color, points }) => {
    const look = { class: "series", style: `stroke:${color}` };
    const path = points.map(({ at, value }, place) => `${place ? "L" : "M"}${x(at)},${y(value)}`).join("");
    return [
      svg("path", { ...look, d: path }),
      points.map(({ at, value, text }) =>
        svg("circle", { ...look, cx: x(at), cy: y(value), r: points.length > 40 ? 1.5 : 3.5 }, svg("title", {}, text)),
      ),
    ];
  });
  const ticks = [0, 0.5, 1].map((share) => [
    svg("path", { class: "tick", d: `M${LEFT},${y(share * most)}H${width - 10}` }),
    svg(
      "text",
      { class: "value", x: LEFT - 6, y: y(share * most) + 4, "text-anchor": "end" },
      number(share * most, 3),
    ),
  ]);
  const end = { class: "value", y: HEIGHT - 5 };
  const picture = svg("svg", { width, height: HEIGHT, class: "chart", role: "img", "aria-label": title }, [
    ticks,
    mark === undefined ? null : svg("path", { class: "mark", d: `M${x(mark)},8V${HEIGHT - BOTTOM}` }),
    lines,
    svg("text", { ...end, x: LEFT }, ends[0]),
    svg("text", { ...end, x: width - 10, "text-anchor": "end" }, ends[1]),
  ]);
  const legend = html("p", { class: "small legend" }, [
    series.map(({ name, color }) => html("span", { class: "key", style: `--key:${color}` }, name)),
    pictureButtons(file, picture),
  ]);
  return html("div", {}, legend, scroller(title, {}, picture));
}
