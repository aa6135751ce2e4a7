// Translate: settings of the search, every piece with its alternatives, the n-best list, the tree.

import { isOffline } from "./api.js";
import { beamTree } from "./beam_tree.js";
import { button, checkbox, choice, html, kept, number, numberBox, percent, section } from "./dom.js";
import { label } from "./pieces.js";
import { roving } from "./roving.js";
import { plainSource } from "./source_map.js";
import { numbersOf } from "./state.js";

const SHOWN_ALTERNATIVES = 5;
const RESHAPED =
  "p → q: p is the model's probability, q that of being drawn. Temperature divides the logits " +
  "(below 1 sharper, above 1 flatter), top-k keeps the k most probable tokens, top-p the fewest " +
  "that have this share together; what is cut off is never drawn.";

/** The boxes for numbers; what is left empty is the model's own setting. */
function boxes({ state, set, model }) {
  return (name, text, limits, plain = model.settings[name] ?? "auto") =>
    numberBox(
      name,
      text,
      limits,
      // A kept page holds the searches that were looked at.
      { value: state[name], placeholder: plain, disabled: isOffline },
      (value) => set({ [name]: value }),
    );
}

/** The controls of the search. */
export function searchControls(context) {
  const { state, set, can, model } = context;
  const box = boxes(context);
  const kinds = [
    ["", `${model.settings.length_penalty_type} (model)`],
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
    samplingControls(context, box),
  );
}

/** Draws in place of the search, and what makes their distribution another than the model's. */
function samplingControls({ state }, box) {
  return html(
    "div",
    { class: "controls sampling", role: "group", "aria-label": "sampling" },
    box("draws", "Draws", [1, 32, 1], "none"),
    state.draws === "" ? null : box("seed", "Seed", [0, 2 ** 31 - 1, 1], 0),
    box("temperature", "Temperature", [0.01, 100, "any"], 1),
    box("top_k", "Top-k", [0, 1000, 1], "all"),
    box("top_p", "Top-p", [0.01, 1, "any"], 1),
  );
}

/** Whether tokens are drawn with other probabilities than the model's. */
function isReshaped(state) {
  return ["temperature", "top_k", "top_p"].some((name) => state[name] !== "");
}

/** A probability, and that of being drawn where it is another. */
function share(one, state) {
  if (!isReshaped(state)) return percent(one.probability);
  return `${percent(one.probability)} → ${one.drawn > 0 ? percent(one.drawn) : "never"}`;
}

/** A step of the decoder: the piece, its probability, and what else was probable. */
function stepCard(step, place, changes, { state, set, can }) {
  const listed = step.alternatives.slice(0, SHOWN_ALTERNATIVES);
  const rows = listed.map((one, rank) => {
    const isChosen = one.id === step.piece.id;
    return html(
      "li",
      {},
      button(
        [html("span", { class: "piece" }, label(one)), " ", html("span", { class: "share" }, share(one, state))],
        () => set(changes(one, place)),
        {
          ...kept(can(changes(one, place)), isChosen ? "alternative chosen" : "alternative"),
          id: `alternative-${place}-${rank}`,
          style: `--share:${(100 * (isReshaped(state) ? one.drawn : one.probability)).toFixed(2)}%`,
          "data-step": place,
        },
      ),
    );
  });
  const note = step.given ? "given" : step.rank ? `rank ${step.rank + 1}` : "";
  return html(
    "li",
    { class: step.given ? "step given" : "step" },
    html(
      "div",
      { class: "step-head" },
      html("strong", { class: "piece" }, label(step.piece)),
      html("span", {}, share(step, state)),
    ),
    html("div", { class: "small" }, `log p ${number(step.log_probability, 4)}`, note ? ` · ${note}` : ""),
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
        html("label", { for: `hypothesis-${place}`, dir: "auto" }, one.text || "(empty)", one.is_complete ? "" : " …"),
      ),
      html("td", {}, number(one.score)),
      html("td", {}, number(one.log_probability)),
      html("td", {}, String(one.ids.length)),
    );
  });
  const heads = ["Translation", "Score", "log p", "Tokens"].map((text) => html("th", { scope: "col" }, text));
  return html(
    "div",
    { class: "scroll" },
    html("table", { class: "n-best" }, html("thead", {}, html("tr", {}, html("td"), heads)), html("tbody", {}, rows)),
  );
}

const SIGNS = { "␣": " ", "⏎": "\n", "⇥": "\t" };

/** The text with a piece in place of the mask token with this number. */
function replaceMask(text, mask, number, shown) {
  const parts = text.split(mask);
  const piece = shown.replaceAll(/[␣⏎⇥]/g, (sign) => SIGNS[sign]);
  return `${parts.slice(0, number + 1).join(mask)}${piece}${parts.slice(number + 1).join(mask)}`;
}

/** The tree of the search, or why there is none. */
function treeSection(context) {
  const { state, set, model, translation } = context;
  const note = (text) => section("Beam search", html("p", { class: "note" }, text));
  if (translation.tree) {
    const dead = checkbox("show pruned hypotheses", state.dead, (dead) => set({ dead }));
    return section("Beam search", dead, beamTree(context));
  }
  if (!model.is_ours) return note("The tree is shown for models of this package.");
  if (state.draws !== "") return note("Draws have no tree: leave “Draws” empty for a search.");
  return note("Set at least 2 beams to see the tree of the search.");
}

export function translateView(context) {
  const { state, set, model, source, translation } = context;
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
      source
        ? "Recognised text"
        : { translation: "Translation", causal: "Continuation", masked: "Filled" }[model.kind],
      html("p", { class: "translation", id: "translation", dir: "auto" }, chosen.text || "(empty)"),
      html(
        "p",
        { class: "small" },
        `score ${number(chosen.score)} · log-probability ${number(chosen.log_probability)}`,
        chosen.is_complete ? "" : " · cut off at the limit of tokens",
      ),
      source
        ? plainSource(source, state.text)
        : html(
            "p",
            { class: "pieces" },
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
      isReshaped(state) ? html("p", { class: "small", id: "reshaped" }, RESHAPED) : null,
      roving(
        html(
          "ol",
          {
            class: isReshaped(state) ? "steps wide" : "steps",
            "aria-label": "steps of the decoder; arrow keys move",
          },
          chosen.steps.map((step, place) => stepCard(step, place, changes, context)),
        ),
      ),
    ),
    translation.hypotheses.length > 1
      ? section(state.draws === "" ? "Best hypotheses" : "Draws, in their order", nBest(context))
      : null,
    isMasked ? null : treeSection(context),
  ].filter(Boolean);
}
