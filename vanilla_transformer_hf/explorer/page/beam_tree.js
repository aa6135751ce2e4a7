// The tree of a beam search: a column for each step, a box for each hypothesis, pruned ones too.

import { announce, button, html, kept, number, svg } from "./dom.js";
import { pictureButtons } from "./keep.js";
import { label } from "./pieces.js";
import { roving } from "./roving.js";
import { say } from "./texts.js";

const COLUMN = 178;
const ROW = 32;
const BOX = { width: 146, height: 24 };
const LETTERS = 13;

/** The row of each node in the column of its step: by its parent's, then by its score. */
function places(tree, isShown) {
  const rows = new Map([[0, 0]]);
  let column = [0];
  let count = 1;
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

export function beamTree({ state, set, can, translation }) {
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
  const x = (node) => 8 + tree[node].step * COLUMN;
  const y = (node) => 8 + rows.get(node) * ROW;
  const details = html("div", { class: "details" }, say("tree.help"));

  function choose(node) {
    const one = tree[node];
    const ids = pathOf(tree, node).join(",");
    const numbers = { log: number(one.log_probability), score: number(one.score), state: say(`tree.${one.state}`) };
    const text = say("tree.node", { piece: label(one.piece), ...numbers });
    const further = { prefix: ids, hypothesis: 0, ids: "" };
    announce(text);
    details.replaceChildren(
      html("span", {}, text),
      button(say("tree.continue"), () => set(further), kept(can(further))),
      button(say("tree.attention"), () => set({ ids, view: "attention" })),
    );
  }

  const lines = [];
  const boxes = [];
  for (const node of rows.keys()) {
    const one = tree[node];
    const kind = onPath.has(node) ? "best" : one.state;
    if (node) {
      const [fromX, fromY] = [x(one.parent) + BOX.width, y(one.parent) + BOX.height / 2];
      const toY = y(node) + BOX.height / 2;
      const middle = (fromX + x(node)) / 2;
      lines.push(
        svg("path", {
          class: `edge ${kind}`,
          d: `M${fromX},${fromY}C${middle},${fromY} ${middle},${toY} ${x(node)},${toY}`,
        }),
      );
    }
    const name = label(one.piece);
    const shownName = name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name;
    const seen = node ? number(one.log_probability, 3) : "";
    boxes.push(
      svg(
        "g",
        {
          class: `node ${kind}`,
          id: `node-${node}`,
          role: "button",
          transform: `translate(${x(node)},${y(node)})`,
          // What is seen comes first: who speaks to the page says that.
          "aria-label": say("tree.box", { seen: `${shownName} ${seen}`, name, state: say(`tree.${one.state}`) }),
          click: () => node && choose(node),
          keydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              if (node) choose(node);
            }
          },
        },
        svg("rect", { width: BOX.width, height: BOX.height, rx: 4 }),
        svg("text", { x: 7, y: 16 }, shownName),
        node ? svg("text", { class: "value", x: BOX.width - 6, y: 16, "text-anchor": "end" }, seen) : null,
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
      "aria-label": say("tree.label"),
    },
    lines,
    boxes,
  );
  const legend = html("p", { class: "small legend" }, [
    ["best", "running", "finished", "dead"].map((kind) => html("span", { class: `key ${kind}` }, say(`tree.${kind}`))),
    ` ${say("tree.numbers")} `,
    pictureButtons("beam-tree", () => picture),
  ]);
  return html("div", {}, legend, html("div", { class: "scroll tall" }, roving(picture, ".node")), details);
}
