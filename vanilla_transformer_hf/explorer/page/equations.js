// The paper's equations as MathML, which browsers draw and screen readers read without the network.

import { html } from "./dom.js";
import { say } from "./texts.js";

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
  heads: () => "MultiHead = Concat(head_1, …, head_h) W^O\nhead_j = Attention(X W_j^Q, X W_j^K, X W_j^V)",
  residual: ({ norm, isPost, alpha }) =>
    isPost ? `${name(norm)}(${factor(alpha)} x + Sublayer(x))` : `${factor(alpha)} x + Sublayer(${name(norm)}(x))`,
  ffn: ({ activation, isGated }) => {
    const hidden = isGated ? `(${inner(activation)} ⊙ (x W_3 + b_3))` : inner(activation);
    return `FFN(x) = ${hidden} W_2 + b_2`;
  },
  layers: () => "Z_N = Layer_N(… Layer_1(X) …)",
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
export function equation(kind, about) {
  const text = EQUATIONS[kind](about);
  const lines = text.split("\n").map((line) => `<mtr><mtd columnalign="left">${mathOf(line)}</mtd></mtr>`);
  const content = lines.length > 1 ? `<mtable>${lines.join("")}</mtable>` : mathOf(text);
  const element = html("div", { class: "equation", id: "equation" });
  element.innerHTML = `<math display="block">${content}</math>`;
  const spoken = text.replaceAll("//", " / ").replaceAll("\n", ", ").replaceAll(/[{}"]/g, "");
  element.firstChild.setAttribute("aria-label", spoken.trim());
  return element;
}
