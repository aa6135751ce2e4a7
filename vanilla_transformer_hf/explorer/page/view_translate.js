// Translate: settings of the search, every piece with its alternatives, the n-best list, the tree.

import { isOffline } from "./api.js";
import { beamTree } from "./beam_tree.js";
import { button, checkbox, choice, html, kept, number, numberBox, percent } from "./dom.js";
import { row, section, small, table } from "./dom.js";
import { label } from "./pieces.js";
import { roving } from "./roving.js";
import { plainSource } from "./source_map.js";
import { numbersOf } from "./state.js";
import { say } from "./texts.js";

const SHOWN_ALTERNATIVES = 5;

/** The boxes for numbers; what is left empty is the model's own setting. */
function boxes({ state, set, model }) {
  return (name, limits, plain = model.settings[name] ?? say("search.auto")) =>
    numberBox(
      name,
      say(`search.${name}`),
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
  const own = { type: model.settings.length_penalty_type };
  const kinds = ["", "power", "gnmt"].map((kind) => {
    return [kind, say(`search.type_${kind || "own"}`, own), !can({ length_penalty_type: kind })];
  });
  const languages = ["", ...model.target_langs].map((one) => {
    return [one, one || "–", !can({ target_lang: one })];
  });
  const setType = (value) => set({ length_penalty_type: value });
  const setLanguage = (value) => set({ target_lang: value });
  return html("div", { class: "controls" }, [
    box("num_beams", [1, 32, 1]),
    box("length_penalty", [-10, 10, "any"]),
    model.is_ours ? choice(say("search.type"), state.length_penalty_type, kinds, setType, "type") : null,
    box("max_new_tokens", [1, 512, 1]),
    model.target_langs.length ? choice(say("search.to"), state.target_lang, languages, setLanguage, "to") : null,
    samplingControls(context, box),
  ]);
}

/** Draws in place of the search, and what makes their distribution another than the model's. */
function samplingControls({ state }, box) {
  return html("div", { class: "controls sampling", role: "group", "aria-label": say("search.sampling") }, [
    box("draws", [1, 32, 1], say("search.none")),
    state.draws === "" ? null : box("seed", [0, 2 ** 31 - 1, 1], 0),
    box("temperature", [0.01, 100, "any"], 1),
    box("top_k", [0, 1000, 1], say("search.all")),
    box("top_p", [0.01, 1, "any"], 1),
  ]);
}

/** Whether tokens are drawn with other probabilities than the model's. */
function isReshaped(state) {
  return ["temperature", "top_k", "top_p"].some((name) => state[name] !== "");
}

/** A probability, and that of being drawn where it is another. */
function share(one, state) {
  if (!isReshaped(state)) return percent(one.probability);
  return `${percent(one.probability)} → ${one.drawn > 0 ? percent(one.drawn) : say("step.never")}`;
}

/** A step of the decoder: the piece, its probability, and what else was probable. */
function stepCard(step, place, changes, { state, set, can }) {
  const listed = step.alternatives.slice(0, SHOWN_ALTERNATIVES);
  const rows = listed.map((one, rank) => {
    const isChosen = one.id === step.piece.id;
    return html("li", {}, [
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
    ]);
  });
  const note = step.given ? say("step.given") : step.rank ? say("step.rank", { rank: step.rank + 1 }) : "";
  return html("li", { class: step.given ? "step given" : "step" }, [
    html("div", { class: "step-head" }, [
      html("strong", { class: "piece" }, label(step.piece)),
      html("span", {}, share(step, state)),
    ]),
    html("div", { class: "small" }, `log p ${number(step.log_probability, 4)}`, note ? ` · ${note}` : ""),
    html("ol", { class: "alternatives" }, rows),
  ]);
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
      "aria-label": say("best.hypothesis", { number: place + 1 }),
    });
    const text = [one.text || say("output.empty"), one.is_complete ? "" : " …"];
    return row({ class: isChosen ? "chosen" : null }, null, [
      radio,
      html("td", { class: "text" }, html("label", { for: `hypothesis-${place}`, dir: "auto" }, text)),
      [one.score, one.log_probability].map((value) => number(value)),
      String(one.ids.length),
    ]);
  });
  const heads = ["", ...["translation", "score", "log_p", "tokens"].map((name) => say(`best.${name}`))];
  return html("div", { class: "scroll" }, table({ class: "n-best" }, heads, rows));
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
  if (translation.tree) {
    const dead = checkbox(say("tree.show_pruned"), state.dead, (dead) => set({ dead }));
    return section(say("tree.title"), dead, beamTree(context));
  }
  const reason = !model.is_ours ? "not_ours" : state.draws !== "" ? "draws" : "one_beam";
  return section(say("tree.title"), html("p", { class: "note" }, say(`tree.${reason}`)));
}

/** The tokens that were read, or the picture of the file. */
function sourceLine({ state, source, translation }) {
  if (source) return plainSource(source, state.text);
  const chips = translation.source.map((piece) => [
    html("span", { class: piece.special ? "chip special" : "chip" }, label(piece)),
    " ",
  ]);
  return html("p", { class: "pieces" }, html("span", { class: "unseen" }, say("output.source")), chips);
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
  const scores = { score: number(chosen.score), log: number(chosen.log_probability) };
  const cards = chosen.steps.map((step, place) => stepCard(step, place, changes, context));
  const steps = { class: isReshaped(state) ? "steps wide" : "steps", "aria-label": say("step.list") };
  return [
    isMasked ? null : searchControls(context),
    section(
      say(source ? "output.recognised" : `output.${model.kind}`),
      html("p", { class: "translation", id: "translation", dir: "auto" }, chosen.text || say("output.empty")),
      small(say(chosen.is_complete ? "output.scores" : "output.scores_cut", scores)),
      sourceLine(context),
      given
        ? html("p", { class: "note", id: "prefix" }, [
            `${say("output.continues", { pieces: begun })} `,
            button(say("output.start_again"), () => set({ prefix: "" }), { id: "start-again" }),
          ])
        : null,
    ),
    section(
      say("step.title"),
      small(say(`step.help_${model.kind}`, { mask: model.mask })),
      isReshaped(state) ? html("p", { class: "small", id: "reshaped" }, say("step.reshaped")) : null,
      roving(html("ol", steps, cards)),
    ),
    translation.hypotheses.length > 1
      ? section(say(state.draws === "" ? "best.title" : "best.draws"), nBest(context))
      : null,
    isMasked ? null : treeSection(context),
  ].filter(Boolean);
}
