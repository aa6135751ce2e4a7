// The page: its header, its views, and the state behind the # of the address.

import { AnswerError, NotKept, ask, askAnew, firstState, holds, isOffline } from "./api.js";
import { changesBar, changesOf } from "./changes.js";
import { restoreTheme } from "./colors.js";
import { announce, attempt, button, faultNote, html, restoreDrafts, watchDrafts } from "./dom.js";
import { invitation, makeHeader, readyToKeep, tabText, withExample, withOtherExample } from "./header.js";
import { savePage } from "./keep.js";
import { SMALL_STEPS, nextState, readState, translateRequest, writeState } from "./state.js";
import { say, speak } from "./texts.js";
import { searchControls } from "./view_translate.js";
import { runSection } from "./view_watch.js";
import { VIEWS } from "./views.js";

const SLOW = 300; // milliseconds after which waiting is shown and said
const OFTEN = 2000; // milliseconds between two looks at a run

const view = document.getElementById("view");
const panel = document.getElementById("panel");
const bar = html("div"); // what is not the plain model
let models = [];
let run = null; // that is watched, if one is
let views = [];
let header = null;
let state = null;
let shown = null; // the last state that could be drawn
let notice = null; // the error of a state that could not
let said = ""; // the translation that screen readers were told last
let smallSteps = ""; // the names of the changes, where the last ones were small steps
let drawing = 0;

/** A state of models that are open and views that there are. */
function fitting(found) {
  const model = models.some((one) => one.name === found.model) ? found.model : models[0].name;
  const name = views.some((one) => one.name === found.view) ? found.view : readState("").view;
  return withExample({ ...found, model, view: name }, models);
}

/** Write the state into the address; a page in a frame of another page has none of its own. */
function remember(replaces) {
  const address = `#${writeState(state)}`;
  if (address === location.hash) return;
  try {
    if (replaces) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  } catch (error) {
    if (error.name !== "SecurityError") throw error;
  }
}

/** Change what is shown. */
function set(wanted) {
  const changes = withOtherExample(wanted, state, models);
  const changed = Object.keys(changes);
  const names = changed.every((name) => SMALL_STEPS.has(name)) ? changed.join() : "";
  state = nextState(state, changes);
  remember(names !== "" && names === smallSteps);
  smallSteps = names;
  notice = null;
  return draw();
}

/** Show new elements; the focus stays on the control that had it, and what is typed stays. */
function replace(elements, changes) {
  const focused = document.activeElement;
  const hadFocus = view.contains(focused) || bar.contains(focused);
  const kept = window.scrollY;
  panel.replaceChildren(...elements);
  bar.replaceChildren(...changes);
  restoreDrafts(panel);
  const field = panel.querySelector("[data-field]")?.dataset.field;
  if (field) document.getElementById(field)?.setAttribute("aria-invalid", "true");
  window.scrollTo(0, kept);
  if (!hadFocus) return;
  const again = focused.id ? document.getElementById(focused.id) : null;
  (again && !again.disabled ? again : view).focus({ preventScroll: true });
}

/** Say and show that an answer is waited for, if it takes long; the function it gives ends that. */
function waiting(title) {
  const timer = setTimeout(() => {
    view.classList.add("slow");
    announce(say("page.loading"));
  }, SLOW);
  return () => {
    clearTimeout(timer);
    if (!view.classList.contains("slow")) return;
    view.classList.remove("slow");
    announce(say("page.loaded", { view: title }));
  };
}

function titleOf(model, name) {
  const start = state.text.length > 40 ? `${state.text.slice(0, 40)}…` : state.text;
  return [name, start, model.name, say("page.explorer")].filter(Boolean).join(" · ");
}

/** Go back from a state that a kept page has no answer for, and say so; whether there is a way. */
function goBack(error) {
  if (!(error instanceof NotKept)) return false;
  const first = fitting(readState(firstState) ?? readState("")); // where a kept page began
  const before = shown ?? (writeState(first) === writeState(state) ? null : first);
  if (before === null) return false;
  [state, notice] = [before, error];
  remember(true);
  return true;
}

async function draw() {
  const mine = ++drawing;
  const one = views.find((each) => each.name === state.view);
  const model = models.find((each) => each.name === state.model);
  speak(state);
  header.update(state);
  const name = tabText("tab", one.name, model.kind);
  document.title = titleOf(model, name);
  panel.setAttribute("aria-labelledby", `tab-${one.name}`);
  view.setAttribute("aria-busy", "true");
  const done = waiting(name);
  const can = (changes) => holds("translate", translateRequest(nextState(state, changes)));
  const context = { state, set, ask, can, holds, model, models, run, translation: null };
  let made;
  try {
    made = await content(one, context);
  } catch (error) {
    if (mine === drawing && goBack(error)) made = null;
    else {
      const hasSearch = error instanceof AnswerError && model.kind !== "masked"; // which may have led to the error
      made = [hasSearch ? searchControls(context) : null, faultNote(error)];
    }
  }
  done();
  if (mine !== drawing) return; // something newer is shown
  if (made === null) return draw();
  if (context.translation) shown = state;
  const changes = changesBar(changesOf(state, model, context.translation), set);
  const parts = [notice && faultNote(notice), made].flat().filter(Boolean);
  replace(parts, changes ? [changes] : []);
  tell(context.translation);
  view.setAttribute("aria-busy", "false");
}

/** Say a translation that has not been said. */
function tell(translation) {
  const text = (translation?.hypotheses[state.hypothesis] ?? translation?.hypotheses[0])?.text ?? "";
  if (text !== said && text !== "") announce(text);
  said = text;
}

async function content(one, context) {
  const { ask, model, state } = context;
  const note = (key) =>
    html("p", { class: "note" }, say(key, { view: tabText("tab", one.name, model.kind), model: model.name }));
  const isFile = model.reads !== "text";
  // In windows in which the tabs have no room for their lines, that of the view stands here.
  const line = html("p", { class: "view-line" }, tabText("line", one.name, model.kind));
  if (one.isOfRun) return [line, ...(await one.draw(context))];
  if (one.needsOurs && !model.is_ours) return note("page.needs_ours");
  if (one.needsText && isFile) return note("page.needs_text");
  if (state.text.trim() === "") {
    const back = () => set({ text: model.example });
    return [note(`page.empty_${model.reads}`), model.example && button(say("page.example"), back, { id: "example" })];
  }
  context.translation = await ask("translate", translateRequest(state));
  context.source = isFile ? await ask("source", { model: model.name, text: state.text }) : null;
  const drawn = await one.draw(context);
  return [line, bytesNote(context), invitation(context), drawn].flat();
}

/** A warning where most of a sentence are bytes of letters: the model has hardly seen these letters. */
function bytesNote({ model, translation }) {
  const read = translation.source.filter((piece) => !piece.special);
  const bytes = read.filter((piece) => piece.parts > 1);
  if (model.reads !== "text" || 2 * bytes.length <= read.length) return null;
  const counts = { count: bytes.length, all: read.length };
  return html("p", { class: "note", id: "bytes", role: "status" }, say("page.bytes", counts));
}

/** Show the state of an address; an anchor of the page is none. */
function show(address) {
  const found = readState(address);
  if (found === null) return remember(true);
  state = fitting(found);
  smallSteps = "";
  notice = null;
  return draw();
}

/** Open the page: its models, then the sentence of the address. */
async function start() {
  restoreTheme();
  const first = readState(location.hash.slice(1) || firstState);
  speak(first ?? readState(""));
  try {
    models = await ask("models");
    run = holds("run") ? await ask("run") : null;
  } catch (error) {
    panel.replaceChildren(faultNote(error));
    view.setAttribute("aria-busy", "false");
    return;
  }
  views = VIEWS.filter((one) => run || !one.isOfRun);
  if (run && !isOffline) setTimeout(follow, OFTEN);
  if (models.length) await begin(first);
  else showRun();
}

/** Show a run that has no checkpoint yet, and so no sentence. */
function showRun() {
  panel.replaceChildren(runSection(run));
  view.setAttribute("aria-busy", "false");
}

/** Ask again and again how far the run is, and show what is new. */
async function follow() {
  const found = await attempt(askAnew("run"));
  const isNew = !(found instanceof Error) && JSON.stringify(found) !== JSON.stringify(run);
  if (isNew && !panel.querySelector(":active")) {
    // A run that has begun anew has other checkpoints of the same steps.
    if (!run.checkpoints.every((step) => found.checkpoints.includes(step))) return location.reload();
    const before = run.checkpoints;
    run = found;
    if (run.checkpoints.join() !== before.join()) {
      const opened = await attempt(askAnew("models"));
      if (!(opened instanceof Error)) models.splice(0, models.length, ...opened);
      // Where the newest checkpoint is open beside the curves, it stays the newest.
      const newest = `checkpoint-${run.checkpoints.at(-1)}`;
      const follows = state?.view === "watch" && state.model === `checkpoint-${before.at(-1)}`;
      if (follows && models.some((one) => one.name === newest)) state = nextState(state, { model: newest });
      announce(say("watch.arrived", { step: run.checkpoints.at(-1) }));
    }
    if (!header && models.length) await begin(readState(location.hash.slice(1)));
    else if (!header) showRun();
    else {
      if (!models.some((one) => one.name === state.model)) state = fitting(state);
      if (state.view === "watch") await draw();
      else header.update(state);
    }
  }
  setTimeout(follow, OFTEN);
}

/** Make the header, and show the first state. */
async function begin(first) {
  const save = async () => {
    await readyToKeep({ state, ask, models });
    await savePage(state);
  };
  header = makeHeader(models, views, { set, save, redraw: draw });
  document.getElementById("header").append(...header.elements, bar);
  watchDrafts(view);
  state = fitting(first ?? readState(firstState) ?? readState(""));
  if (run && location.hash === "" && !isOffline) state.view = "watch";
  addEventListener("popstate", () => {
    if (location.hash.slice(1) !== writeState(state)) show(location.hash.slice(1));
  });
  await draw();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address behind # is the state
  view.focus();
});
start();
