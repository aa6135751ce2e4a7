// Errors: one of a question is shown in place of its answer, below the controls that led to it.

import { AnswerError } from "./api.js";
import { html } from "./dom.js";

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
  const text = isKnown ? error.message : "Something went wrong; see the browser console.";
  return html("p", { class: "error", role: "alert", "data-field": error.field }, text);
}
