// The guided tour: one sentence from ids to probabilities, a stop for each step of the paper.

import { sequential } from "./colors.js";
import { announce, attempt, button, faultText, html, label, roving, row, table } from "./dom.js";
import { heatMap } from "./heat_map.js";
import { say, sentences } from "./texts.js";
import { readJourney, stopsOf } from "./tour_stops.js";

// Headings of columns that are words; others are symbols.
const WORDS = ["token", "id", "key", "layer", "shape", "length", "cosine"];

/** The tokens as buttons: the pressed one is followed. */
function followed(title, pieces, chosen, choose) {
  const chips = pieces.map((piece, place) =>
    button(label(piece), () => choose(place), {
      class: piece.special ? "chip special" : "chip",
      id: `${title.id}-${place}`,
      "aria-pressed": place === chosen,
    }),
  );
  const row = html("span", { class: "pieces", role: "group", "aria-label": title.text }, chips);
  return html("div", { class: "followed" }, html("span", { class: "small" }, title.text), roving(row));
}

function numbersTable({ heads, rows, marked }) {
  const headings = heads.map((text) => (WORDS.includes(text) ? say(`tour.${text}`) : text));
  const lines = rows.map(([first, ...cells], place) =>
    row({ class: place === marked ? "chosen" : null }, first, cells),
  );
  const numbers = table({ class: "numbers", id: "tour-numbers" }, headings, lines);
  return html("div", { class: "scroll", role: "group", tabindex: 0, "aria-label": say("tour.numbers") }, numbers);
}

/** All numbers of the vectors of a stop, or all weights of its head. */
function numbersMap({ map }) {
  const { columns, columnLabels } = map;
  return heatMap({
    ...map,
    title: say(columnLabels ? "tour.weights" : "tour.all"),
    id: "tour",
    cell: Math.max(2, Math.min(26, Math.floor(620 / columns))),
    scale: columnLabels ? sequential(1) : undefined,
  });
}

function shapesList(shapes) {
  return html("p", { class: "tour-shapes", id: "tour-shapes" }, [
    html("span", { class: "small" }, say("tour.shapes")),
    " ",
    Object.entries(shapes).map(([name, shape]) =>
      html("span", { class: "tour-shape" }, html("var", {}, name), ` [${shape.join(" × ")}]`),
    ),
  ]);
}

/** What a stop shows; if its numbers cannot be had, it says why. */
async function contents(stop, journey, { set }) {
  const kind = stop.equation?.(journey) ?? stop.name;
  const formula = equation(kind, stop.about?.(journey) ?? {});
  const shown = await attempt(stop.read(journey));
  if (shown instanceof Error) {
    const text = say("tour.missing", { reason: faultText(shown).text });
    return [formula, html("p", { class: "note", id: "tour-missing" }, text)];
  }
  const values = { token: journey.name, ...shown.values };
  const words = shown.texts.filter(Boolean).map((key) => say(`stop.${key}`, values));
  const kindOf = shown.see.view === "translate" ? journey.model.kind : shown.see.view;
  const view = say(`tab.${kindOf}`);
  return [
    html("p", { class: "tour-words", id: "tour-words" }, sentences(words)),
    formula,
    shapesList(shown.shapes),
    html("h3", {}, say("tour.numbers")),
    numbersTable(shown.table),
    shown.table.map ? numbersMap(shown.table) : null,
    html("p", {}, [button(say("tour.see", { view }), () => set(shown.see), { id: "tour-see" })]),
  ];
}

/** Back, next and skip; they stay in their places while the stops change. */
function navigation(at, stops, { set }) {
  const leave = () => set({ view: "translate", stop: 0 });
  const go = async (stop) => {
    await set({ stop });
    const pressed = document.getElementById(stop < at ? "tour-back" : "tour-next");
    (pressed?.disabled ? document.getElementById("tour-next") : pressed)?.focus();
    announce(document.getElementById("tour-title")?.textContent ?? "");
  };
  const isLast = at === stops.length - 1;
  return html("nav", { class: "tour-bar", "aria-label": say("tab.tour") }, [
    button(say("tour.back"), () => go(at - 1), { id: "tour-back", disabled: at === 0 }),
    button(isLast ? say("tour.end") : say("tour.next"), () => (isLast ? leave() : go(at + 1)), {
      id: "tour-next",
      class: "primary",
    }),
    html("span", { id: "tour-at" }, say("tour.stop", { at: at + 1, count: stops.length })),
    isLast ? null : button(say("tour.skip"), leave, { id: "tour-skip", class: "plain" }),
  ]);
}

function stopList(at, stops, { set }) {
  const items = stops.map((stop, place) =>
    html("li", {}, [
      button(say(`stop.${stop.name}.title`), () => set({ stop: place }), {
        id: `stop-${stop.name}`,
        class: "plain",
        "aria-current": place === at ? "step" : null,
      }),
    ]),
  );
  return html("nav", { "aria-label": say("tour.stops") }, roving(html("ol", { class: "tour-stops" }, items)));
}

export async function tourView(context) {
  const { state, set } = context;
  const journey = await readJourney(context);
  const stops = stopsOf(journey);
  const at = Math.min(Math.max(0, state.stop), stops.length - 1);
  const stop = stops[at];
  const { pieces, found, token, step, isPair } = journey;
  const source = { id: "token", text: say("tour.source_token") };
  const target = { id: "step", text: say("tour.target_token") };
  return html("div", { class: "tour" }, [
    stopList(at, stops, { set }),
    html("article", { "aria-labelledby": "tour-title" }, [
      navigation(at, stops, { set }),
      followed(source, pieces, token, (place) => set({ token: place })),
      isPair ? followed(target, found.predicted, step, (place) => set({ step: place })) : null,
      html("h2", { id: "tour-title" }, `${at + 1}. ${say(`stop.${stop.name}.title`)}`),
      html("p", { class: "small" }, say("tour.section", { number: stop.section })),
      await contents(stop, journey, { set }),
    ]),
  ]);
}

// --------------------------------------- the paper's equations as MathML, which browsers draw and screen readers read

const scores = "{Q K^T}//{√d_k}";
const angle = "{pos}//{10000^{2 i/d_{model}}}";
// Names come from a model's config.
const name = (text) => `"${text.replaceAll('"', "")}"`;
const factor = (alpha) => (alpha === 1 ? "" : Number(alpha.toPrecision(4)));
const inner = (activation) => (activation === "relu" ? "max(0, x W_1 + b_1)" : `${name(activation)}(x W_1 + b_1)`);
const READ = { translation: "x, y_{<t}", causal: "y_{<t}", masked: "x" };

/**
 * Of each stop the equation; what depends on the model is given to it. What follows ^ and _ is raised and lowered,
 * {…} belongs together, // stands between the parts of a fraction, and "…" is a name.
 */
const EQUATIONS = {
  ids: () => "x = (x_1, …, x_S)",
  embedding: ({ isScaled }) => `X = E[x]${isScaled ? " · √d_{model}" : ""}`,
  sinusoidal: () => `PE(pos, 2 i) = sin(${angle})\nPE(pos, 2 i + 1) = cos(${angle})`,
  added: () => "X_{pos} + P_{pos}",
  inside: () => "X + 0",
  project: () => "Q = X W^Q, K = X W^K, V = X W^V",
  softmax: () => `Attention(Q, K, V) = softmax(${scores}) V`,
  heads: () => "MultiHead = Concat(head_0, head_1, …) W^O\nhead_j = Attention(X W_j^Q, X W_j^K, X W_j^V)",
  residual: ({ norm, isPost, alpha }) =>
    isPost ? `${name(norm)}(${factor(alpha)} x + Sublayer(x))` : `${factor(alpha)} x + Sublayer(${name(norm)}(x))`,
  ffn: ({ activation, isGated }) => {
    const hidden = isGated ? `(${inner(activation)} ⊙ (x W_3 + b_3))` : inner(activation);
    return `FFN(x) = ${hidden} W_2 + b_2`;
  },
  layers: () => "Z = …(Layer_1(Layer_0(X)))",
  masked: () => `softmax(${scores} + M) V, M_{i j} = −∞ "\u00a0${say("equation.for")}\u00a0" j > i`,
  cross: () => "Q = Y W^Q, K = Z W^K, V = Z W^V",
  logits: ({ kind }) => `P(${kind === "masked" ? "x" : "y"}_t | ${READ[kind]}) = softmax(z_t E^T)`,
};

const TOKEN = /"[^"]*"|\p{L}+|\d+(?:\.\d+)?|\/\/|\S/gu;
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** A line as MathML. */
function mathOf(line) {
  const tokens = line.match(TOKEN);
  let at = 0;
  const take = (token) => tokens[at] === token && ++at;
  function part() {
    const token = tokens[at++];
    if (token === "{" || token === "(") {
      const content = row();
      at += 1; // the end of it
      return token === "{" ? `<mrow>${content}</mrow>` : `<mrow><mo>(</mo>${content}<mo>)</mo></mrow>`;
    }
    if (token === "√") return `<msqrt>${scripted()}</msqrt>`;
    const kind = /^\d/.test(token) ? "mn" : /^["\p{L}]/u.test(token) ? "mi" : "mo";
    return `<${kind}>${escaped(token.replaceAll('"', ""))}</${kind}>`;
  }
  function scripted() {
    const base = part();
    const below = take("_") ? part() : "";
    const above = take("^") ? part() : "";
    if (!below && !above) return base;
    const kind = below && above ? "msubsup" : below ? "msub" : "msup";
    return `<${kind}>${base}${below}${above}</${kind}>`;
  }
  function row() {
    let made = "";
    while (at < tokens.length && tokens[at] !== "}" && tokens[at] !== ")") {
      const first = scripted();
      made += take("//") ? `<mfrac>${first}${scripted()}</mfrac>` : first;
    }
    return made;
  }
  return row();
}

/** An equation as an element; in a line of text for screen readers that do not read MathML. */
function equation(kind, about) {
  const text = EQUATIONS[kind](about);
  const lines = text.split("\n").map((line) => `<mtr><mtd columnalign="left">${mathOf(line)}</mtd></mtr>`);
  const content = lines.length > 1 ? `<mtable>${lines.join("")}</mtable>` : mathOf(text);
  const element = html("div", { class: "equation", id: "equation" });
  element.innerHTML = `<math display="block">${content}</math>`;
  const spoken = text.replaceAll("//", " / ").replaceAll("\n", ", ").replaceAll(/[{}"]/g, "");
  element.firstChild.setAttribute("aria-label", spoken.trim());
  return element;
}
