// Translate: settings of the search, the probability of every token with its alternatives, the n-best list, the tree.

import { beamTree } from "./beam_tree.js";
import { button, checkbox, choice, html, labelled, number, percent, section } from "./dom.js";
import { label } from "./pieces.js";
import { numbersOf } from "./state.js";

const SHOWN_ALTERNATIVES = 5;

/** The controls of the search; what is left empty is the model's own setting. */
export function searchControls({ state, set, model }) {
  const own = model.settings;
  const box = (name, text, least, most, step) =>
    labelled(
      text,
      html("input", {
        type: "number",
        id: name,
        min: least,
        max: most,
        step,
        value: state[name],
        placeholder: own[name] ?? "auto",
        change: (event) => set({ [name]: event.target.value }),
      }),
    );
  const kinds = [
    ["", `${own.length_penalty_type} (model)`],
    ["power", "power: |Y|^α"],
    ["gnmt", "GNMT: ((5+|Y|)/6)^α"],
  ];
  return html(
    "div",
    { class: "controls" },
    box("num_beams", "Beams", 1, 32, 1),
    box("length_penalty", "Length penalty α", -10, 10, 0.1),
    model.is_ours
      ? choice("Type", state.length_penalty_type, kinds, (value) =>
          set({ length_penalty_type: value }),
        )
      : null,
    box("max_new_tokens", "Most tokens", 1, 512, 1),
    model.target_langs.length
      ? choice(
          "To",
          state.target_lang,
          [["", "–"], ...model.target_langs.map((one) => [one, one])],
          (value) => set({ target_lang: value }),
        )
      : null,
  );
}

/** A step of the decoder: the token, its probability, and what else was probable. */
function stepCard(step, place, choose) {
  const listed = step.alternatives.slice(0, SHOWN_ALTERNATIVES);
  const rows = listed.map((one) => {
    const isChosen = one.id === step.piece.id;
    return html(
      "li",
      {},
      button(
        [
          html("span", { class: "piece" }, label(one)),
          html("span", { class: "share" }, percent(one.probability)),
        ],
        () => choose(one, place),
        {
          class: isChosen ? "alternative chosen" : "alternative",
          style: `--share:${(100 * one.probability).toFixed(2)}%`,
          "aria-label": `continue with ${one.text}, ${percent(one.probability)}`,
          "data-step": place,
        },
      ),
    );
  });
  const state = step.given ? "given" : step.rank ? `rank ${step.rank + 1}` : "";
  return html(
    "li",
    { class: step.given ? "step given" : "step" },
    html(
      "div",
      { class: "step-head" },
      html("strong", { class: "piece" }, label(step.piece)),
      html("span", {}, percent(step.probability)),
    ),
    html(
      "div",
      { class: "small" },
      `log p ${number(step.log_probability, 4)}`,
      state ? ` · ${state}` : "",
    ),
    html("ol", { class: "alternatives" }, rows),
  );
}

function nBest({ state, set, translation }) {
  const rows = translation.hypotheses.map((one, place) => {
    const isChosen = state.ids === "" && place === state.hypothesis;
    const radio = html("input", {
      type: "radio",
      name: "hypothesis",
      id: `hypothesis-${place}`,
      checked: isChosen,
      change: () => set({ hypothesis: place, ids: "" }),
      "aria-label": `hypothesis ${place + 1}`,
    });
    return html(
      "tr",
      { class: isChosen ? "chosen" : null },
      html("td", {}, radio),
      html(
        "td",
        { class: "text" },
        html(
          "label",
          { for: `hypothesis-${place}` },
          one.text || "(empty)",
          one.is_complete ? "" : " …",
        ),
      ),
      html("td", {}, number(one.score)),
      html("td", {}, number(one.log_probability)),
      html("td", {}, String(one.ids.length)),
    );
  });
  const heads = ["", "Translation", "Score", "log p", "Tokens"].map((text) =>
    html("th", { scope: "col" }, text),
  );
  return html(
    "div",
    { class: "scroll" },
    html(
      "table",
      { class: "n-best" },
      html("thead", {}, html("tr", {}, heads)),
      html("tbody", {}, rows),
    ),
  );
}

/** The text with a token in place of the mask token with this number. */
function replaceMask(text, mask, number, piece) {
  const parts = text.split(mask);
  return `${parts.slice(0, number + 1).join(mask)}${piece}${parts.slice(number + 1).join(mask)}`;
}

export function translateView(context) {
  const { state, set, model, translation } = context;
  const chosen = translation.hypotheses[state.hypothesis] ?? translation.hypotheses[0];
  const given = numbersOf(state.prefix).length;
  const isMasked = model.kind === "masked";
  // A language model of gaps gets the token into its text, the others go on behind it.
  const choose = (one, place) =>
    isMasked
      ? set({ text: replaceMask(state.text, model.mask, place, one.text) })
      : set({ prefix: [...chosen.ids.slice(0, place), one.id].join(","), hypothesis: 0, ids: "" });
  const begun = chosen.steps
    .slice(0, given)
    .map((step) => label(step.piece))
    .join(" ");
  return [
    isMasked ? null : searchControls(context),
    section(
      { translation: "Translation", causal: "Continuation", masked: "Filled" }[model.kind],
      html("p", { class: "translation", id: "translation" }, chosen.text || "(empty)"),
      html(
        "p",
        { class: "small" },
        `score ${number(chosen.score)} · log-probability ${number(chosen.log_probability)}`,
        chosen.is_complete ? "" : " · cut off at the limit of tokens",
      ),
      html(
        "p",
        { class: "pieces", "aria-label": "tokens of the source" },
        translation.source.map((piece) =>
          html("span", { class: piece.special ? "chip special" : "chip" }, label(piece)),
        ),
      ),
      given
        ? html(
            "p",
            { class: "note", id: "prefix" },
            `Continues from: ${begun} `,
            button("Start again", () => set({ prefix: "" })),
          )
        : null,
    ),
    section(
      "Probability of each token",
      html(
        "p",
        { class: "small" },
        isMasked
          ? `Write ${model.mask} where a token is missing; choose one to put it in.`
          : "Choose an alternative, and the translation continues from there.",
      ),
      html(
        "ol",
        { class: "steps", tabindex: 0, "aria-label": "steps of the decoder" },
        chosen.steps.map((step, place) => stepCard(step, place, choose)),
      ),
    ),
    translation.hypotheses.length > 1 ? section("Best hypotheses", nBest(context)) : null,
    isMasked
      ? null
      : translation.tree
        ? section(
            "Beam search",
            checkbox("show pruned hypotheses", state.dead, (dead) => set({ dead })),
            beamTree(context),
          )
        : section(
            "Beam search",
            html(
              "p",
              { class: "note" },
              context.model.is_ours
                ? "Set at least 2 beams to see the tree of the search."
                : "The tree is shown for models of this package.",
            ),
          ),
  ].filter(Boolean);
}
