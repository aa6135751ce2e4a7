// The header: the model, the sentence and the tabs. It is made once, so that nothing typed is lost.

import { holds, isOffline } from "./api.js";
import { button, choice, html, labelled } from "./dom.js";
import { fileField } from "./file_field.js";
import { tabLabel } from "./first_page.js";
import { nextState, translateRequest } from "./state.js";
import { LANGUAGES, say } from "./texts.js";
import { chooseTheme, currentTheme } from "./theme.js";

const MOST_SHOWN = 60; // characters of the sentence in the line about what is typed

/** The sentence, with a line that says when what is typed is not yet what is shown. */
function sentenceField(set) {
  const input = html("textarea", {
    id: "text",
    rows: 2,
    spellcheck: "false",
    lang: "",
    dir: "auto",
    readonly: isOffline,
  });
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
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!isOffline) set({ text: input.value, prefix: "" });
    }
  });
  return { input, note, update };
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
      tab.replaceChildren(...tabLabel(views[place].name, kind));
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
  const action = html("button", { type: "submit", class: "primary", id: "translate" });
  action.disabled = isOffline;
  const reads = html("p", { class: "small", id: "reads" });
  const theme = button("", () => {
    chooseTheme(currentTheme() === "dark" ? "light" : "dark");
    redraw(); // canvases have the theme's colours
  });
  theme.id = "theme";
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
    const select = chooser.querySelector("select");
    const options = models.map(({ name }) => {
      const next = translateRequest(nextState(state, { model: name }));
      return html("option", { value: name, disabled: name !== state.model && !holds("translate", next) }, name);
    });
    select.replaceChildren(...options);
    select.value = state.model;
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
