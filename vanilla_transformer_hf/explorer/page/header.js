// The header: the model, the sentence and the tabs. It is made once, so that nothing typed is lost.

import { AnswerError, holds, isOffline, send } from "./api.js";
import { chooseTheme, currentTheme } from "./colors.js";
import { announce, button, choice, faultText, html, labelled, sentenceBox } from "./dom.js";
import { nextState, translateRequest } from "./state.js";
import { LANGUAGES, say } from "./texts.js";
import { askForTour } from "./tour_stops.js";

const MOST_SHOWN = 60; // characters of the sentence in the line about what is typed

/** The sentence, with a line that says when what is typed is not yet what is shown. */
function sentenceField(set) {
  const input = sentenceBox("text", { rows: 2, spellcheck: "false" }, (text) => set({ text, prefix: "" }));
  const text = html("span");
  const forget = () => {
    input.value = input.defaultValue;
    update(input.defaultValue);
    input.focus();
  };
  const note = html("p", { class: "small", id: "typed", hidden: true, role: "status" }, [
    text,
    button("", forget, { id: "undo-typing", "data-text": "header.undo_typing" }),
  ]);
  function update(shown) {
    const isTyped = input.value !== input.defaultValue;
    if (input.defaultValue !== shown) input.defaultValue = shown;
    if (!isTyped) input.value = shown;
    note.hidden = input.value === shown || shown === "";
    const start = shown.length > MOST_SHOWN ? `${shown.slice(0, MOST_SHOWN)}…` : shown;
    text.textContent = note.hidden ? "" : `${say("header.typed", { text: start })} `;
  }
  input.addEventListener("input", () => update(input.defaultValue));
  return { input, note, update };
}

/** Make a control a choice among names; those that a kept page lacks cannot be chosen. */
function offer(control, names, field, state) {
  const select = control.querySelector("select");
  const options = names.map((name) => {
    const isThere = holds("translate", translateRequest(nextState(state, { [field]: name })));
    const attributes = { value: name, disabled: !isThere && name !== state[field] };
    return html("option", attributes, name || say("file.none"));
  });
  select.replaceChildren(...options);
  select.value = state[field];
}

/** The tabs; arrow keys move between them. */
function tabList(views, set) {
  const tabs = views.map(({ name }) =>
    button("", () => set({ view: name }), { role: "tab", id: `tab-${name}`, "aria-controls": "panel" }),
  );
  const move = (event) => {
    const last = tabs.length - 1;
    const place = tabs.indexOf(event.target);
    const target = {
      ArrowRight: place === last ? 0 : place + 1,
      ArrowLeft: place === 0 ? last : place - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    tabs[target].focus();
    set({ view: views[target].name });
  };
  const update = (state, kind) =>
    tabs.forEach((tab, place) => {
      const isShown = views[place].name === state.view;
      tab.setAttribute("aria-selected", String(isShown));
      tab.setAttribute("tabindex", isShown ? 0 : -1);
      // Its name, and a line that says what it shows.
      const texts = ["tab", "line"].map((what) => tabText(what, views[place].name, kind));
      tab.replaceChildren(...texts.map((text, at) => html("span", { class: at ? "tab-line" : "tab-name" }, text)));
    });
  const list = html("div", { role: "tablist", "data-label": "header.views", keydown: move }, tabs);
  return { list, update };
}

/** The header's elements, and `update(state)`, which makes them those of a state and of the models there are. */
export function makeHeader(models, views, { set, save, redraw }) {
  const sentence = sentenceField(set);
  const field = labelled(html("span", { "data-text": "header.sentence" }), sentence.input);
  const file = fileField(set);
  const { list, update: updateTabs } = tabList(views, set);
  const modelText = html("span", { "data-text": "header.model" });
  const chooser = choice(modelText, "", [], (model) => set({ model }), "model");
  const action = html("button", { type: "submit", class: "primary", id: "translate", disabled: isOffline });
  const reads = html("p", { class: "small", id: "reads" });
  const change = () => {
    chooseTheme(currentTheme() === "dark" ? "light" : "dark");
    redraw(); // canvases have the theme's colours
  };
  const theme = button("", change, { id: "theme" });
  const languages = html(
    "select",
    { id: "language", "data-label": "page.language", change: (event) => set({ language: event.target.value }) },
    Object.entries(LANGUAGES).map(([code, { name }]) => html("option", { value: code, lang: code }, name)),
  );
  const submit = (event) => {
    event.preventDefault();
    set({ text: sentence.input.value, prefix: "" });
  };
  const elements = [
    html("form", { class: "sentence", submit }, [
      models.length > 1 || views.some((one) => one.isOfRun) ? chooser : html("p", { class: "name" }, models[0].name),
      field,
      action,
      file.element,
    ]),
    sentence.note,
    reads,
    html("div", { class: "bar" }, [
      list,
      html("span", { class: "tools" }, [
        isOffline
          ? html("span", { class: "note", "data-text": "header.kept" })
          : button("", save, { id: "save", "data-text": "header.save" }),
        languages,
        theme,
      ]),
    ]),
  ];
  function update(state) {
    const model = models.find((one) => one.name === state.model);
    const names = models.map((one) => one.name);
    offer(chooser, names, "model", state);
    sentence.input.placeholder = say(model.mask ? "header.masked_sentence" : "header.a_sentence");
    sentence.update(state.text);
    file.update(state, model);
    field.hidden = action.hidden = model.reads !== "text";
    sentence.note.hidden ||= field.hidden;
    action.textContent = say(`tab.${model.kind}`);
    reads.textContent = readsLine(model);
    reads.hidden = reads.textContent === "";
    theme.textContent = say(currentTheme() === "dark" ? "header.light" : "header.dark");
    languages.value = document.documentElement.lang;
    updateTabs(state, model.kind);
  }
  return { elements, update };
}

/** Which languages a model reads and writes, and what it was trained on, as far as its card says so. */
function readsLine({ languages, corpus, pairs }) {
  const { lang } = document.documentElement;
  const names = new Intl.DisplayNames([lang], { type: "language" });
  const nameOf = (code) => (/^[a-z]{2,3}(-\w+)*$/i.test(code) ? names.of(code) : code);
  const count = pairs?.toLocaleString(lang);
  const trained = corpus && say(pairs ? "header.trained_pairs" : "header.trained", { corpus, count });
  return [languages.map(nameOf).join(" → "), trained].filter(Boolean).join(" · ");
}

// -------------------------------------------------------------- the source of a model that reads recordings or images

const ACCEPTED = { speech: "audio/*", image: "image/*" };

/** The bytes of a file as base64. */
async function base64Of(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const parts = [];
  for (let start = 0; start < bytes.length; start += 0x8000)
    parts.push(String.fromCharCode(...bytes.subarray(start, start + 0x8000)));
  return btoa(parts.join(""));
}

/**
 * A choice among the open files, and a control that opens another; files can be dropped anywhere on
 * the page. `update(state, model)` shows it for models that read files.
 */
function fileField(set) {
  let model = null;
  const fault = html("p", { role: "alert", id: "file-error", hidden: true });
  const filesText = html("span", { "data-text": "file.file" });
  const files = choice(filesText, "", [], (text) => set({ text, prefix: "" }), "file");
  const input = html("input", { type: "file", id: "open-file", disabled: isOffline });
  const field = labelled(html("span", { "data-text": "file.open" }), input);
  const element = html("div", { class: "controls file-source" }, files, field, fault);

  const tell = (text) => {
    fault.hidden = text === "";
    fault.className = fault.hidden ? "" : "error"; // there is an error only where one is seen
    fault.textContent = text;
  };

  async function open(file) {
    tell("");
    try {
      const data = await base64Of(file);
      const opened = await send("file", { model: model.name, name: file.name, data });
      model.files = opened.files;
      announce(say("file.is_open", { name: opened.name }));
      await set({ text: opened.name, prefix: "" });
    } catch (error) {
      if (!(error instanceof AnswerError)) throw error;
      tell(faultText(error).text);
    }
  }
  input.addEventListener("change", () => {
    if (input.files.length) open(input.files[0]);
    input.value = ""; // the same file may be opened again
  });
  const takesFiles = () => model !== null && model.reads !== "text" && !isOffline;
  document.addEventListener("dragover", (event) => {
    if (takesFiles()) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (!takesFiles() || !event.dataTransfer.files.length) return;
    event.preventDefault();
    open(event.dataTransfer.files[0]);
  });

  function update(state, shown) {
    if (shown !== model) tell("");
    model = shown;
    element.hidden = model.reads === "text";
    if (element.hidden) return;
    input.accept = ACCEPTED[model.reads];
    const named = model.files.includes(state.text) ? model.files : [...model.files, state.text];
    offer(files, named, "text", state);
  }
  return { element, update };
}

// -------------------------------------- the first ten seconds: a sentence, what each tab shows, the way into the tour

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
export async function readyToKeep({ state, ask, models }) {
  const model = models.find((one) => one.name === state.model);
  if (!hasTour(model) || state.text.trim() === "") return;
  try {
    const translation = await ask("translate", translateRequest(state));
    await askForTour({ state, ask, model, translation });
  } catch (error) {
    console.info(error.message); // the view shows it
  }
}
