// Errors: one of a question is shown in place of its answer, below the controls that led to it.

import { AnswerError } from "./api.js";
import { html } from "./dom.js";
import { hasText, say } from "./texts.js";

/** The answer, or its error; what is no answer's error is thrown. */
export async function attempt(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof AnswerError) return error;
    throw error;
  }
}

/** An error as a line of the page; its field's control, if it is shown, is marked as invalid. */
export function faultNote(error) {
  const isKnown = error instanceof AnswerError;
  if (!isKnown) console.error(error);
  const { text, isSaid } = isKnown ? faultText(error) : { text: say("fault.unknown"), isSaid: true };
  const language = isSaid ? null : "en"; // the server's own words
  return html("p", { class: "error", role: "alert", lang: language, "data-field": error.field }, text);
}

/** What an error says, in the page's language if it is one of those that a reader meets most. */
export function faultText({ message, code, values }) {
  const key = `fault.${code}`;
  return hasText(key) ? { text: say(key, values), isSaid: true } : { text: message, isSaid: false };
}
