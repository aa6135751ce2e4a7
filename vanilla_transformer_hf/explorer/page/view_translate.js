// Translate: settings of the search, every piece with its alternatives, the n-best list, the tree.

import { isOffline } from "./api.js";
import { beamTree } from "./beam_tree.js";
import {
  button,
  checkbox,
  choice,
  html,
  kept,
  number,
  numberBox,
  percent,
  section,
} from "./dom.js";
import { label } from "./pieces.js";
import { roving } from "./roving.js";
import { numbersOf } from "./state.js";

const SHOWN_ALTERNATIVES = 5;

/** The controls of the search; what is left empty is the model's own setting. */
export function searchControls({ state, set, can, model }) {
  const own = model.settings;
  const box = (name, text, limits) =>
    numberBox(
      name,
      text,
      limits,
      // A kept page holds the searches that were looked at.
      { value: state[name], placeholder: own[name] ?? "auto", disabled: isOffline },
      (value) => set({ [name]: value }),
    );
  const kinds = [
    ["", `${own.length_penalty_type} (model)`],
    ["power", "power: |Y|^α"],
    ["gnmt", "GNMT: ((5+|Y|)/6)^α"],
  ].map(([kind, text]) => [kind, text, !can({ length_penalty_type: kind })]);
  const languages = ["", ...model.target_langs].map((one) => {
    return [one, one || "–", !can({ target_lang: one })];
  });
  const setType = (value) => set({ length_penalty_type: value });
  const setLanguage = (value) => set({ target_lang: value });
  return html(
    "div",
    { class: "controls" },
    box("num_beams", "Beams", [1, 32, 1]),
    box("length_penalty", "Length penalty α", [-10, 10, "any"]),
    model.is_ours ? choice("Type", state.length_penalty_type, kinds, setType) : null,
    box("max_new_tokens", "Most tokens", [1, 512, 1]),
    model.target_langs.length ? choice("To", state.target_lang, languages, setLanguage) : null,
  );
}

/** A step of the decoder: the piece, its probability, and what else was probable. */
function stepCard(step, place, changes, { set, can }) {
  const listed = step.alternatives.slice(0, SHOWN_ALTERNATIVES);
  const rows = listed.map((one, rank) => {
    const isChosen = one.id === step.piece.id;
    return html(
      "li",
      {},
      button(
        [
          html("span", { class: "piece", dir: "auto" }, label(one)),
          " ",
          html("span", { class: "share" }, percent(one.probability)),
        ],
        () => set(changes(one, place)),
        {
          ...kept(can(changes(one, place)), isChosen ? "alternative chosen" : "alternative"),
          id: `alternative-${place}-${rank}`,
          style: `--share:${(100 * one.probability).toFixed(2)}%`,
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
      html("strong", { class: "piece", dir: "auto" }, label(step.piece)),
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
          { for: `hypothesis-${place}`, dir: "auto" },
          one.text || "(empty)",
          one.is_complete ? "" : " …",
        ),
      ),
      html("td", {}, number(one.score)),
      html("td", {}, number(one.log_probability)),
      html("td", {}, String(one.ids.length)),
    );
  });
  const heads = ["Translation", "Score", "log p", "Tokens"].map((text) =>
    html("th", { scope: "col" }, text),
  );
  return html(
    "div",
    { class: "scroll" },
    html(
      "table",
      { class: "n-best" },
      html("thead", {}, html("tr", {}, html("td"), heads)),
      html("tbody", {}, rows),
    ),
  );
}

const SIGNS = { "␣": " ", "⏎": "\n", "⇥": "\t" };

/** The text with a piece in place of the mask token with this number. */
function replaceMask(text, mask, number, shown) {
  const parts = text.split(mask);
  const piece = shown.replaceAll(/[␣⏎⇥]/g, (sign) => SIGNS[sign]);
  return `${parts.slice(0, number + 1).join(mask)}${piece}${parts.slice(number + 1).join(mask)}`;
}

export function translateView(context) {
  const { state, set, model, translation } = context;
  const chosen = translation.hypotheses[state.hypothesis] ?? translation.hypotheses[0];
  const given = numbersOf(state.prefix).length;
  const isMasked = model.kind === "masked";
  // A language model of gaps gets the piece into its text, the others go on behind it.
  const changes = (one, place) =>
    isMasked
      ? { text: replaceMask(state.text, model.mask, place, one.text) }
      : { prefix: [...chosen.ids.slice(0, place), one.id].join(","), hypothesis: 0, ids: "" };
  const begun = chosen.steps
    .slice(0, given)
    .map((step) => label(step.piece))
    .join(" ");
  return [
    isMasked ? null : searchControls(context),
    section(
      { translation: "Translation", causal: "Continuation", masked: "Filled" }[model.kind],
      html("p", { class: "translation", id: "translation", dir: "auto" }, chosen.text || "(empty)"),
      html(
        "p",
        { class: "small" },
        `score ${number(chosen.score)} · log-probability ${number(chosen.log_probability)}`,
        chosen.is_complete ? "" : " · cut off at the limit of tokens",
      ),
      html(
        "p",
        { class: "pieces", dir: "auto" },
        html("span", { class: "unseen" }, "Tokens of the source: "),
        translation.source.map((piece) => [
          html("span", { class: piece.special ? "chip special" : "chip" }, label(piece)),
          " ",
        ]),
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
      roving(
        html(
          "ol",
          { class: "steps", "aria-label": "steps of the decoder; arrow keys move" },
          chosen.steps.map((step, place) => stepCard(step, place, changes, context)),
        ),
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
