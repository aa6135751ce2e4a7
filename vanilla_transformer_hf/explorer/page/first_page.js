// The first ten seconds: a sentence that is already there, what each tab shows, and the way into
// the tour.

import { button, html } from "./dom.js";
import { say } from "./texts.js";
import { askForTour } from "./tour_stops.js";

/** Whether a model has the tour: it follows a sentence from its ids. */
function hasTour(model) {
  return model.is_ours && model.reads === "text";
}

/** A state that has no sentence, with the example of its model. */
export function withExample(state, models) {
  const model = models.find((one) => one.name === state.model);
  return state.text === "" && model ? { ...state, text: model.example } : state;
}

/** Changes of a state; with another model, its example takes the place of the one before. */
export function withOtherExample(changes, state, models) {
  if (!("model" in changes) || "text" in changes) return changes;
  const [before, after] = [state.model, changes.model].map((name) => models.find((one) => one.name === name));
  // A sentence is not a file, and a file of one model is not one of another's.
  if (before.reads !== "text" || after?.reads !== "text") return { ...changes, text: after?.example ?? "" };
  const isExample = before.example !== "" && state.text === before.example;
  return isExample && after?.example ? { ...changes, text: after.example } : changes;
}

/** What stands on a tab and in a title; the first view does another thing with each kind of model. */
export function tabText(what, view, kind) {
  return say(`${what}.${view === "translate" ? kind : view}`);
}

/** What stands on a tab: its name, and a line that says what it shows. */
export function tabLabel(view, kind) {
  return [
    html("span", { class: "tab-name" }, tabText("tab", view, kind)),
    html("span", { class: "tab-line" }, tabText("line", view, kind)),
  ];
}

/** Above the example: the way into the tour. */
export function invitation({ state, set, model, translation }) {
  const isFirst = state.view === "translate" && hasTour(model) && state.text === model.example;
  if (!isFirst || translation === null) return null;
  const count = model.kind === "translation" ? 12 : 10;
  return html("p", { class: "invitation", id: "invitation" }, [
    html("span", {}, say("tour.invite", { count })),
    " ",
    button(say("tour.start"), () => set({ view: "tour", stop: 0 }), { id: "tour-start" }),
  ]);
}

/** Ask what the tour shows before a page is kept; without it, the page is kept as it is. */
export async function readyToKeep({ state, ask, models }, translateRequest) {
  const model = models.find((one) => one.name === state.model);
  if (!hasTour(model) || state.text.trim() === "") return;
  try {
    const translation = await ask("translate", translateRequest(state));
    await askForTour({ state, ask, model, translation });
  } catch (error) {
    console.info(error.message); // the view shows it
  }
}
