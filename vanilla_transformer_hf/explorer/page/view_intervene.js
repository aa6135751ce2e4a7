// Intervene: heads and layers off, another target, other settings or another model; both sides with all their numbers.

import { AnswerError } from "./api.js";
import { button, checkbox, choice, html, labelled, number, percent, section } from "./dom.js";
import { label } from "./pieces.js";
import { translateRequest } from "./state.js";

/** Toggles for all heads and layers of a part; a pressed one is off. */
function toggles(part, model, off, change) {
  const flip = (name) =>
    change(off.has(name) ? [...off].filter((one) => one !== name) : [...off, name]);
  const toggle = (name, text, spoken) =>
    html(
      "button",
      {
        type: "button",
        class: "toggle",
        id: `off-${name}`,
        "aria-pressed": String(off.has(name)),
        "aria-label": `${spoken} off`,
        click: () => flip(name),
      },
      text,
    );
  const rows = Array.from({ length: model.layers[part] }, (_, layer) => {
    const whole = `${part}.${layer}`;
    const heads = Array.from({ length: model.heads[part][layer] }, (_, head) =>
      html(
        "td",
        {},
        toggle(`${whole}.${head}`, String(head), `${part}, layer ${layer}, head ${head}`),
      ),
    );
    return html(
      "tr",
      {},
      html(
        "th",
        { scope: "row" },
        toggle(
          whole,
          part === "cross" ? `all of ${layer}` : `layer ${layer}`,
          `${part}, layer ${layer}`,
        ),
      ),
      heads,
    );
  });
  return html(
    "div",
    {},
    html("h3", {}, part),
    html("table", { class: "toggles" }, html("tbody", {}, rows)),
  );
}

/** What both sides ask: a translation, or the score of the target that was typed. */
function questionsOf({ state }) {
  const off = state.off ? state.off.split(",") : [];
  const plain = translateRequest({ ...state, applied: false });
  const changed = { ...plain, model: state.model_b || state.model, off };
  if (state.beams_b !== "") changed.num_beams = Number(state.beams_b);
  if (state.penalty_b !== "") changed.length_penalty = Number(state.penalty_b);
  if (state.target.trim() === "")
    return [
      ["translate", plain],
      ["translate", changed],
    ];
  const scored = (request) => {
    const { prefix, max_new_tokens, ...others } = request;
    return ["score", { ...others, target: state.target }];
  };
  return [scored(plain), scored(changed)];
}

/** A change of a probability. */
function changeOf(value) {
  if (Math.abs(value) < 5e-7) return "0";
  return `${value > 0 ? "+" : "−"}${percent(Math.abs(value))}`;
}

function side(title, result, other, id) {
  if (result instanceof AnswerError)
    return html(
      "div",
      { class: "side" },
      html("h3", {}, title),
      html("p", { class: "error", role: "alert" }, result.message),
    );
  const best = result.hypotheses[0];
  const against = other instanceof AnswerError ? null : other.hypotheses[0];
  const difference = against ? best.score - against.score : 0;
  const rows = best.steps.map((step, place) => {
    const theirs = against?.steps[place];
    const isSame = theirs && theirs.piece.id === step.piece.id;
    return html(
      "tr",
      { class: isSame ? null : "differs" },
      html("td", { class: "piece" }, label(step.piece)),
      html("td", {}, percent(step.probability)),
      html(
        "td",
        { class: "bar-cell" },
        html("span", { class: "bar", style: `width:${(100 * step.probability).toFixed(1)}%` }),
      ),
      html("td", {}, isSame ? changeOf(step.probability - theirs.probability) : "another"),
    );
  });
  const heads = ["token", "p", "", "difference"].map((text) => html("th", { scope: "col" }, text));
  return html(
    "div",
    { class: "side" },
    html("h3", {}, title),
    html("p", { class: "translation", id }, best.text || "(empty)"),
    html(
      "p",
      { class: "small" },
      `score ${number(best.score)}`,
      difference ? ` (${difference > 0 ? "+" : "−"}${number(Math.abs(difference), 4)})` : "",
      ` · log p ${number(best.log_probability)}`,
    ),
    html(
      "div",
      { class: "scroll tall" },
      html(
        "table",
        { class: "numbers" },
        html("thead", {}, html("tr", {}, heads)),
        html("tbody", {}, rows),
      ),
    ),
  );
}

export async function interveneView(context) {
  const { state, set, ask, model, models, translation } = context;
  const otherModel = models.find((one) => one.name === state.model_b) ?? model;
  const off = new Set(state.off ? state.off.split(",") : []);
  const change = (names) => set({ off: names.sort().join(",") });
  const [plain, changed] = await Promise.all(
    questionsOf(context).map(([question, request]) =>
      ask(question, request).catch((error) => {
        if (error instanceof AnswerError) return error;
        throw error;
      }),
    ),
  );
  const typed = html("textarea", {
    id: "target",
    rows: 2,
    value: state.target,
    placeholder: "empty: each side searches its own translation",
  });
  const names = [
    ["", "the same model"],
    ...models
      .filter((one) => one.name !== state.model && one.is_ours)
      .map((one) => [one.name, one.name]),
  ];
  const small = (name, text, least, most, step, hint) =>
    labelled(
      text,
      html("input", {
        type: "number",
        id: name,
        min: least,
        max: most,
        step,
        value: state[name],
        placeholder: hint,
        change: (event) => set({ [name]: event.target.value }),
      }),
    );
  return [
    section(
      "Both sides",
      html(
        "div",
        { class: "sides" },
        side(`as it is: ${model.name}`, plain, changed, "plain"),
        side(
          `changed: ${otherModel.name}${off.size ? `, ${off.size} off` : ""}`,
          changed,
          plain,
          "changed",
        ),
      ),
    ),
    model.kind === "masked"
      ? null
      : section(
          "Target",
          html(
            "div",
            { class: "controls wide" },
            labelled("Target that both sides score", typed),
            button("Score it", () => set({ target: typed.value }), { id: "score" }),
            button("Take the translation", () => set({ target: translation.hypotheses[0].text })),
            button("Search again", () => set({ target: "" })),
          ),
        ),
    section(
      "Settings of the changed side",
      html(
        "div",
        { class: "controls" },
        names.length > 1
          ? choice("Model", state.model_b, names, (value) => set({ model_b: value, off: "" }))
          : null,
        small("beams_b", "Beams", 1, 32, 1, "the same"),
        small("penalty_b", "Length penalty α", -10, 10, 0.1, "the same"),
      ),
    ),
    section(
      "Heads and layers that are off",
      html(
        "p",
        { class: "controls" },
        button("All on", () => change([]), { id: "all-on" }),
        checkbox("the other views show the changed model", state.applied, (applied) =>
          set({ applied }),
        ),
      ),
      html(
        "div",
        { class: "parts" },
        Object.keys(otherModel.layers).map((part) => toggles(part, otherModel, off, change)),
      ),
    ),
  ].filter(Boolean);
}
