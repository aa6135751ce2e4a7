// Texts in the reader's language: that of the address, else the browser's, else English.

import { html } from "./dom.js";
import { en } from "./texts_en.js";
import { zh } from "./texts_zh.js";

// Code -> its own name, its texts, and what stands for a line break between words.
const LANGUAGES = {
  en: { name: "English", texts: en, space: " " },
  zh: { name: "中文", texts: zh, space: "" },
};

export function languageOf(state) {
  if (state.language in LANGUAGES) return state.language;
  const wanted = navigator.languages.map((code) => code.split("-")[0]);
  return wanted.find((code) => code in LANGUAGES) ?? "en";
}

/**
 * A function that gives the text of a key, with values in place of what stands in braces; its
 * `space` stands between sentences.
 */
export function textsOf(state) {
  const { texts, space } = LANGUAGES[languageOf(state)];
  const say = (key, values = {}) =>
    texts[key].replace(/\s*\n\s*/g, space).replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  return Object.assign(say, { space });
}

/** The menu of languages, and `update(state)`, which makes it that of a state. */
export function languageMenu(set) {
  const options = Object.entries(LANGUAGES).map(([code, { name }]) =>
    html("option", { value: code, lang: code }, name),
  );
  const change = (event) => set({ language: event.target.value });
  const menu = html("select", { id: "language", change }, options);
  const update = (state) => {
    menu.value = languageOf(state);
    menu.setAttribute("aria-label", textsOf(state)("page.language"));
  };
  return { menu, update };
}
