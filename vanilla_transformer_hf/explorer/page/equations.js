// The paper's equations as MathML, which browsers draw and screen readers read without the network.

import { html } from "./dom.js";

const i = (text) => `<mi>${text}</mi>`;
const n = (text) => `<mn>${text}</mn>`;
const o = (text) => `<mo>${text}</mo>`;
// Names come from a model's config, so they are not taken for markup.
const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const words = (text) => `<mi mathvariant="normal">${safe(text)}</mi>`;
const row = (...parts) => `<mrow>${parts.join("")}</mrow>`;
const sub = (base, below) => `<msub>${base}${below}</msub>`;
const sup = (base, above) => `<msup>${base}${above}</msup>`;
const root = (content) => `<msqrt>${content}</msqrt>`;
const over = (above, below) => `<mfrac>${above}${below}</mfrac>`;
const call = (name, ...content) => row(words(name), o("("), ...content, o(")"));
const list = (...parts) => parts.join(o(","));
const matrix = (name, role) => row(name, sup(i("W"), i(role)));
const line = (...parts) => `<mtr><mtd columnalign="left">${row(...parts)}</mtd></mtr>`;
const lines = (...rows) => `<mtable>${rows.join("")}</mtable>`;

const d_model = sub(i("d"), words("model"));
const scores = over(row(i("Q"), sup(i("K"), i("T"))), root(sub(i("d"), i("k"))));
const angle = over(i("pos"), sup(n("10000"), row(n("2"), i("i"), o("/"), d_model)));

const place = (index) => row(words("PE"), o("("), i("pos"), o(","), index, o(")"));
const inner = (activation) =>
  activation === "relu" ? row(words("max"), o("("), n("0"), o(","), hidden(1), o(")")) : call(activation, hidden(1));
const hidden = (number) => row(i("x"), sub(i("W"), n(number)), o("+"), sub(i("b"), n(number)));
const factor = (alpha) => (alpha === 1 ? "" : n(Number(alpha.toPrecision(4))));

/** Of each stop the equation; what depends on the model is given to it. */
const EQUATIONS = {
  ids: () => row(i("x"), o("="), o("("), list(sub(i("x"), n(1)), o("…"), sub(i("x"), i("S"))), o(")")),
  embedding: ({ isScaled }) =>
    row(i("X"), o("="), i("E"), o("["), i("x"), o("]"), isScaled ? row(o("·"), root(d_model)) : ""),
  sinusoidal: () =>
    lines(
      line(place(row(n(2), i("i"))), o("="), call("sin", angle)),
      line(place(row(n(2), i("i"), o("+"), n(1))), o("="), call("cos", angle)),
    ),
  added: () => row(sub(i("X"), i("pos")), o("+"), sub(i("P"), i("pos"))),
  inside: () => row(i("X"), o("+"), n(0)),
  project: () =>
    row(
      list(
        row(i("Q"), o("="), matrix(i("X"), "Q")),
        row(i("K"), o("="), matrix(i("X"), "K")),
        row(i("V"), o("="), matrix(i("X"), "V")),
      ),
    ),
  softmax: () => row(call("Attention", list(i("Q"), i("K"), i("V"))), o("="), call("softmax", scores), i("V")),
  heads: () =>
    lines(
      line(
        words("MultiHead"),
        o("="),
        call("Concat", list(sub(words("head"), n(1)), o("…"), sub(words("head"), i("h")))),
        sup(i("W"), i("O")),
      ),
      line(
        sub(words("head"), i("j")),
        o("="),
        call(
          "Attention",
          list(...["Q", "K", "V"].map((role) => row(i("X"), `<msubsup>${i("W")}${i("j")}${i(role)}</msubsup>`))),
        ),
      ),
    ),
  residual: ({ norm, isPost, alpha }) =>
    isPost
      ? call(norm, factor(alpha), i("x"), o("+"), call("Sublayer", i("x")))
      : row(factor(alpha), i("x"), o("+"), call("Sublayer", call(norm, i("x")))),
  ffn: ({ activation, isGated }) =>
    row(
      call("FFN", i("x")),
      o("="),
      isGated ? row(o("("), inner(activation), o("⊙"), o("("), hidden(3), o(")"), o(")")) : inner(activation),
      sub(i("W"), n(2)),
      o("+"),
      sub(i("b"), n(2)),
    ),
  layers: () =>
    row(
      sub(i("Z"), i("N")),
      o("="),
      sub(words("Layer"), i("N")),
      o("("),
      o("…"),
      sub(words("Layer"), n(1)),
      o("("),
      i("X"),
      o(")"),
      o("…"),
      o(")"),
    ),
  masked: () =>
    row(
      words("softmax"),
      o("("),
      scores,
      o("+"),
      i("M"),
      o(")"),
      i("V"),
      o(","),
      sub(i("M"), row(i("i"), i("j"))),
      o("="),
      o("−"),
      o("∞"),
      words("\u00a0for\u00a0"),
      i("j"),
      o("&gt;"),
      i("i"),
    ),
  cross: () =>
    row(
      list(
        row(i("Q"), o("="), matrix(i("Y"), "Q")),
        row(i("K"), o("="), matrix(i("Z"), "K")),
        row(i("V"), o("="), matrix(i("Z"), "V")),
      ),
    ),
  logits: ({ kind }) =>
    row(
      i("P"),
      o("("),
      sub(i(kind === "masked" ? "x" : "y"), i("t")),
      o("|"),
      kind === "causal" ? "" : i("x"),
      kind === "translation" ? o(",") : "",
      kind === "masked" ? "" : sub(i("y"), row(o("&lt;"), i("t"))),
      o(")"),
      o("="),
      call("softmax", sub(i("z"), i("t")), sup(i("E"), i("T"))),
    ),
};

// The same in a line of text, for screen readers that do not read MathML.
const SPOKEN = {
  ids: () => "x = (x₁, …, x_S)",
  embedding: ({ isScaled }) => (isScaled ? "X = E[x] · √d_model" : "X = E[x]"),
  sinusoidal: () =>
    "PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), " + "PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))",
  added: () => "X_pos + P_pos",
  inside: () => "X + 0",
  project: () => "Q = X W^Q, K = X W^K, V = X W^V",
  softmax: () => "Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V",
  heads: () => "MultiHead = Concat(head₁ … head_h) W^O, head_j = Attention(X W_j^Q, X W_j^K, X W_j^V)",
  residual: ({ norm, isPost, alpha }) => {
    const x = alpha === 1 ? "x" : `${alpha} x`;
    return isPost ? `${norm}(${x} + Sublayer(x))` : `${x} + Sublayer(${norm}(x))`;
  },
  ffn: ({ activation, isGated }) => `FFN(x) = (${activation}(x W₁ + b₁)${isGated ? " ⊙ (x W₃ + b₃)" : ""}) W₂ + b₂`,
  layers: () => "Z_N = Layer_N(… Layer₁(X) …)",
  masked: () => "softmax(Q Kᵀ / √d_k + M) V, M_ij = −∞ for j > i",
  cross: () => "Q = Y W^Q, K = Z W^K, V = Z W^V",
  logits: ({ kind }) =>
    ({
      translation: "P(y_t | x, y before t) = softmax(z_t Eᵀ)",
      causal: "P(y_t | y before t) = softmax(z_t Eᵀ)",
      masked: "P(x_t | x) = softmax(z_t Eᵀ)",
    })[kind],
};

/** An equation as an element. */
export function equation(name, about) {
  const element = html("div", { class: "equation", id: "equation" });
  element.innerHTML = `<math display="block">${EQUATIONS[name](about)}</math>`;
  element.firstChild.setAttribute("aria-label", SPOKEN[name](about));
  return element;
}
