// The tree of a beam search: a column for each step, a box for each hypothesis, pruned ones where they ended.

import { announce, button, html, number, svg } from "./dom.js";
import { pictureButtons } from "./keep.js";
import { label } from "./pieces.js";

const COLUMN = 178,
  ROW = 32,
  BOX = { width: 146, height: 24 },
  LETTERS = 13;
const STATES = {
  running: "continued",
  finished: "finished",
  dead: "pruned",
  open: "ran until the end",
};

/** The row of each node in the column of its step: in the order of its parent, then of its score. */
function places(tree, isShown) {
  const rows = new Map([[0, 0]]);
  let column = [0],
    count = 1;
  const children = new Map();
  tree.forEach((node, place) => {
    if (!place || !isShown(place)) return;
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(place);
  });
  while (column.length) {
    column = column.flatMap((node) => children.get(node) ?? []);
    column.forEach((node, row) => rows.set(node, row));
    count = Math.max(count, column.length);
  }
  return { rows, count };
}

export function pathOf(tree, node) {
  const ids = [];
  for (let one = node; one > 0; one = tree[one].parent) ids.unshift(tree[one].piece.id);
  return ids;
}

export function beamTree({ state, set, translation }) {
  const tree = translation.tree;
  const chosen = translation.hypotheses[state.hypothesis] ?? translation.hypotheses[0];
  const ids = state.ids || chosen.ids.join(",");
  const onPath = new Set();
  tree.forEach((node, place) => {
    if (pathOf(tree, place).join(",") !== ids) return;
    for (let one = place; one >= 0; one = tree[one].parent) onPath.add(one);
  });
  const isShown = (node) => state.dead || tree[node].state !== "dead" || onPath.has(node);
  const { rows, count } = places(tree, isShown);
  const steps = Math.max(...[...rows.keys()].map((node) => tree[node].step));
  const x = (node) => 8 + tree[node].step * COLUMN,
    y = (node) => 8 + rows.get(node) * ROW;
  const details = html(
    "div",
    { class: "details", "aria-live": "polite" },
    "Choose a box for its numbers.",
  );

  function choose(node) {
    const one = tree[node],
      path = pathOf(tree, node);
    const text = `${label(one.piece)}: log-probability ${number(one.log_probability)}, score ${number(one.score)}, ${STATES[one.state]}`;
    announce(text);
    details.replaceChildren(
      html("span", {}, text),
      button("Continue from here", () => set({ prefix: path.join(","), hypothesis: 0, ids: "" })),
      button("See its attention", () => set({ ids: path.join(","), view: "attention" })),
    );
  }

  const lines = [],
    boxes = [];
  for (const node of rows.keys()) {
    const one = tree[node],
      kind = onPath.has(node) ? "best" : one.state;
    if (node) {
      const [fromX, fromY] = [x(one.parent) + BOX.width, y(one.parent) + BOX.height / 2],
        toY = y(node) + BOX.height / 2;
      const middle = (fromX + x(node)) / 2;
      lines.push(
        svg("path", {
          class: `edge ${kind}`,
          d: `M${fromX},${fromY}C${middle},${fromY} ${middle},${toY} ${x(node)},${toY}`,
        }),
      );
    }
    const name = label(one.piece);
    boxes.push(
      svg(
        "g",
        {
          class: `node ${kind}`,
          tabindex: 0,
          role: "button",
          transform: `translate(${x(node)},${y(node)})`,
          "aria-label": `${name}, log-probability ${number(one.log_probability, 4)}, ${STATES[one.state]}`,
          click: () => node && choose(node),
          keydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              if (node) choose(node);
            }
          },
        },
        svg("rect", { width: BOX.width, height: BOX.height, rx: 4 }),
        svg(
          "text",
          { x: 7, y: 16 },
          name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name,
        ),
        node
          ? svg(
              "text",
              { class: "value", x: BOX.width - 6, y: 16, "text-anchor": "end" },
              number(one.log_probability, 3),
            )
          : null,
        svg("title", {}, `${name}: ${number(one.log_probability)}`),
      ),
    );
  }
  const picture = svg(
    "svg",
    {
      width: 16 + steps * COLUMN + BOX.width,
      height: 16 + count * ROW,
      class: "tree",
      role: "group",
      "aria-label": "tree of the beam search",
    },
    lines,
    boxes,
  );
  const legend = html(
    "p",
    { class: "small legend" },
    html("span", { class: "key best" }, "chosen"),
    html("span", { class: "key running" }, "continued"),
    html("span", { class: "key finished" }, "finished"),
    html("span", { class: "key dead" }, "pruned"),
    " numbers: log-probability so far ",
    pictureButtons("beam-tree", () => picture),
  );
  return html(
    "div",
    {},
    legend,
    html("div", { class: "scroll tall", tabindex: 0, "aria-label": "beam tree, scrolls" }, picture),
    details,
  );
}
