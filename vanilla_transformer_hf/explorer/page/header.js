// The header: the model, the sentence and the tabs. It is made once, so that nothing typed is lost.

import { holds, isOffline } from "./api.js";
import { button, choice, html, labelled } from "./dom.js";
import { fileField } from "./file_field.js";
import { tabLabel } from "./first_page.js";
import { nextState, translateRequest } from "./state.js";
import { languageMenu, languageOf } from "./texts.js";
import { chooseTheme, currentTheme } from "./theme.js";
import { ACTION_LABELS, VIEWS } from "./views.js";

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
  const note = html(
    "p",
    { class: "small", id: "typed", hidden: true, role: "status" },
    text,
    button("Undo typing", forget),
  );
  function update(shown) {
    const isTyped = input.value !== input.defaultValue;
    if (input.defaultValue !== shown) input.defaultValue = shown;
    if (!isTyped) input.value = shown;
    note.hidden = input.value === shown || shown === "";
    const start = shown.length > 60 ? `${shown.slice(0, 60)}…` : shown;
    text.textContent = note.hidden ? "" : `Press Enter to use it. The page still shows “${start}”. `;
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
function tabList(set) {
  const tabs = VIEWS.map((one) =>
    button(one.title, () => set({ view: one.name }), {
      role: "tab",
      id: `tab-${one.name}`,
      "aria-controls": "panel",
    }),
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
    set({ view: VIEWS[target].name });
  };
  const update = (state, kind) =>
    tabs.forEach((tab, place) => {
      const isShown = VIEWS[place].name === state.view;
      tab.setAttribute("aria-selected", String(isShown));
      tab.setAttribute("tabindex", isShown ? 0 : -1);
      tab.setAttribute("lang", languageOf(state));
      tab.replaceChildren(...tabLabel(VIEWS[place].name, kind, state));
    });
  return {
    list: html("div", { role: "tablist", "aria-label": "Views", keydown: move }, tabs),
    update,
  };
}

/** The header's elements, and `update(state)`, which makes them those of a state. */
export function makeHeader(models, { set, save, redraw }) {
  const sentence = sentenceField(set);
  const field = labelled("Sentence", sentence.input);
  const file = fileField(set);
  const { list, update: updateTabs } = tabList(set);
  const { menu, update: updateMenu } = languageMenu(set);
  const names = models.map((model) => [model.name, model.name]);
  const chooser = choice("Model", "", names, (model) => set({ model }), "model");
  const action = html("button", { type: "submit", class: "primary", id: "translate" });
  action.disabled = isOffline;
  const theme = button("", () => {
    chooseTheme(currentTheme() === "dark" ? "light" : "dark");
    redraw(); // canvases have the theme's colours
  });
  theme.id = "theme";
  const submit = (event) => {
    event.preventDefault();
    set({ text: sentence.input.value, prefix: "" });
  };
  const elements = [
    html(
      "form",
      { class: "sentence", submit },
      models.length > 1 ? chooser : html("p", { class: "name" }, models[0].name),
      field,
      action,
      file.element,
    ),
    sentence.note,
    html(
      "div",
      { class: "bar" },
      list,
      html(
        "span",
        { class: "tools" },
        isOffline ? html("span", { class: "note" }, "kept page") : button("Save page", save, { id: "save" }),
        menu,
        theme,
      ),
    ),
  ];
  function update(state) {
    const model = models.find((one) => one.name === state.model);
    const select = chooser.querySelector("select");
    for (const option of select.options) {
      const next = translateRequest(nextState(state, { model: option.value }));
      option.disabled = option.value !== state.model && !holds("translate", next);
    }
    select.value = state.model;
    sentence.input.placeholder = model.mask ? "A sentence with a mask token where a token is missing" : "A sentence";
    sentence.update(state.text);
    file.update(state, model);
    field.hidden = action.hidden = model.reads !== "text";
    sentence.note.hidden ||= field.hidden;
    action.textContent = ACTION_LABELS[model.kind];
    theme.textContent = currentTheme() === "dark" ? "Light theme" : "Dark theme";
    updateMenu(state);
    updateTabs(state, model.kind);
  }
  return { elements, update };
}
