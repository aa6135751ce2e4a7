// Texts in the reader's language: that of the address, else the browser's, else English.

import { en } from "./texts_en.js";
import { zh } from "./texts_zh.js";

// Code -> its own name, its texts, and what stands between sentences.
export const LANGUAGES = {
  en: { name: "English", texts: en, space: " " },
  zh: { name: "中文", texts: zh, space: "" },
};
let spoken = LANGUAGES.en;

/** The language of a state becomes that of the page. */
export function speak(state) {
  const wanted = [state.language, ...navigator.languages.map((code) => code.split("-")[0]), "en"];
  const language = wanted.find((code) => Object.hasOwn(LANGUAGES, code));
  spoken = LANGUAGES[language];
  document.documentElement.lang = language;
  for (const one of document.querySelectorAll("[data-text]")) one.textContent = say(one.dataset.text);
  for (const one of document.querySelectorAll("[data-label]")) one.setAttribute("aria-label", say(one.dataset.label));
}

const WIDE = /[\u3000-\u303f\uff00-\uffef“”]/;

/** What stands in place of a line break: in Chinese a space beside numbers and Latin letters alone. */
function between(before, after) {
  const isDense = [before, after].some((one) => WIDE.test(one)) || /^\p{Script=Han}{2}$/u.test(before + after);
  return spoken.space === "" && isDense ? before + after : `${before} ${after}`;
}

/** The text of a key, with values in place of what stands in braces. */
export function say(key, values = {}) {
  const text = spoken.texts[key].replace(/(\S)\s*\n\s*(\S)/g, (_, before, after) => between(before, after));
  return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/** Whether a key has a text. */
export function hasText(key) {
  return Object.hasOwn(spoken.texts, key);
}

/** Sentences behind each other. */
export function sentences(parts) {
  return parts.filter(Boolean).join(spoken.space);
}
