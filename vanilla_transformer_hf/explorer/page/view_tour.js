// The guided tour: one sentence from ids to probabilities, a stop for each step of the paper.

import { AnswerError } from "./api.js";
import { announce, button, html } from "./dom.js";
import { equation } from "./equations.js";
import { label } from "./pieces.js";
import { roving } from "./roving.js";
import { languageOf, textsOf } from "./texts.js";
import { readJourney, stopsOf } from "./tour_stops.js";

// Headings of columns that are words; others are symbols.
const WORDS = ["token", "id", "key", "layer", "shape", "length"];

/** The tokens as buttons: the pressed one is followed. */
function followed(title, pieces, chosen, choose) {
  const chips = pieces.map((piece, place) =>
    button(label(piece), () => choose(place), {
      class: piece.special ? "chip special" : "chip",
      id: `${title.id}-${place}`,
      "aria-pressed": String(place === chosen),
    }),
  );
  const row = html("span", { class: "pieces", role: "group", "aria-label": title.text }, chips);
  return html("div", { class: "followed" }, html("span", { class: "small" }, title.text), roving(row));
}

function table({ heads, rows, marked }, say) {
  const heading = (text) => html("th", { scope: "col" }, WORDS.includes(text) ? say(`tour.${text}`) : text);
  const line = ([first, ...cells], place) =>
    html(
      "tr",
      { class: place === marked ? "chosen" : null },
      html("th", { scope: "row" }, first),
      cells.map((cell) => html("td", {}, cell)),
    );
  return html(
    "div",
    { class: "scroll", role: "group", tabindex: 0, "aria-label": say("tour.numbers") },
    html(
      "table",
      { class: "numbers", id: "tour-numbers" },
      html("thead", {}, html("tr", {}, heads.map(heading))),
      html("tbody", {}, rows.map(line)),
    ),
  );
}

function shapesList(shapes, say) {
  return html(
    "p",
    { class: "tour-shapes", id: "tour-shapes" },
    html("span", { class: "small" }, `${say("tour.shapes")}: `),
    shapes.map(([name, shape]) =>
      html("span", { class: "tour-shape" }, html("var", {}, name), ` [${shape.join(" × ")}]`),
    ),
  );
}

/** What a stop shows; if its numbers cannot be had, it says why. */
async function contents(stop, journey, { set, say }) {
  const kind = stop.equation?.(journey) ?? stop.name;
  const formula = equation(kind, stop.about?.(journey) ?? {});
  let shown;
  try {
    shown = await stop.read(journey);
  } catch (error) {
    if (!(error instanceof AnswerError)) throw error;
    const text = say("tour.missing", { reason: error.message });
    return [formula, html("p", { class: "note", id: "tour-missing" }, text)];
  }
  const words = shown.texts.map(([key, values]) => say(`stop.${key}`, values));
  const kindOf = shown.see.view === "translate" ? journey.model.kind : shown.see.view;
  const view = say(`tab.${kindOf}`);
  return [
    html("p", { class: "tour-words", id: "tour-words" }, words.join(say.space)),
    formula,
    shapesList(shown.shapes, say),
    html("h3", {}, say("tour.numbers")),
    table(shown.table, say),
    html(
      "p",
      {},
      button(say("tour.see", { view }), () => set(shown.see), { id: "tour-see" }),
    ),
  ];
}

/** Back, next and skip; they stay in their places while the stops change. */
function navigation(at, stops, { set, say }) {
  const leave = () => set({ view: "translate", stop: 0 });
  const go = async (stop) => {
    await set({ stop });
    const pressed = document.getElementById(stop < at ? "tour-back" : "tour-next");
    (pressed?.disabled ? document.getElementById("tour-next") : pressed)?.focus();
    announce(document.getElementById("tour-title")?.textContent ?? "");
  };
  const isLast = at === stops.length - 1;
  return html(
    "nav",
    { class: "tour-bar", "aria-label": say("tab.tour") },
    button(say("tour.back"), () => go(at - 1), { id: "tour-back", disabled: at === 0 }),
    button(isLast ? say("tour.end") : say("tour.next"), () => (isLast ? leave() : go(at + 1)), {
      id: "tour-next",
      class: "primary",
    }),
    html("span", { id: "tour-at" }, say("tour.stop", { at: at + 1, count: stops.length })),
    isLast ? null : button(say("tour.skip"), leave, { id: "tour-skip", class: "plain" }),
  );
}

function stopList(at, stops, { set, say }) {
  const items = stops.map((stop, place) =>
    html(
      "li",
      {},
      button(say(`stop.${stop.name}.title`), () => set({ stop: place }), {
        id: `stop-${stop.name}`,
        class: "plain",
        "aria-current": place === at ? "step" : null,
      }),
    ),
  );
  return html("nav", { "aria-label": say("tour.stops") }, roving(html("ol", { class: "tour-stops" }, items)));
}

export async function tourView(context) {
  const { state, set } = context;
  const say = textsOf(state);
  const journey = await readJourney(context);
  const stops = stopsOf(journey);
  const at = Math.min(Math.max(0, state.stop), stops.length - 1);
  const stop = stops[at];
  const { pieces, found, token, step, isPair } = journey;
  const source = { id: "token", text: say("tour.source_token") };
  const target = { id: "step", text: say("tour.target_token") };
  return html(
    "div",
    { class: "tour", lang: languageOf(state) },
    stopList(at, stops, { set, say }),
    html(
      "article",
      { "aria-labelledby": "tour-title" },
      navigation(at, stops, { set, say }),
      followed(source, pieces, token, (place) => set({ token: place })),
      isPair ? followed(target, found.predicted, step, (place) => set({ step: place })) : null,
      html("h2", { id: "tour-title" }, `${at + 1}. ${say(`stop.${stop.name}.title`)}`),
      html("p", { class: "small" }, say("tour.section", { number: stop.section })),
      await contents(stop, journey, { set, say }),
    ),
  );
}
