// Questions to the server, each sent once. A page that was kept has the answers with it.

const answers = new Map();
const kept = document.getElementById("answers");
const saved = kept ? JSON.parse(kept.textContent) : { state: "", answers: {} };

export const isOffline = kept !== null;
export const firstState = saved.state ?? "";

/** An error of a question: a message of the server, or a code for which the page has a text. */
export class AnswerError extends Error {
  constructor({ error = "", field = null, code = null, values = {} }) {
    super(error);
    Object.assign(this, { field, code, values });
  }
}

/** How a question is written down: fields in alphabetical order. */
function keyOf(question, request) {
  const sorted = Object.fromEntries(Object.entries(request).sort(([a], [b]) => (a < b ? -1 : 1)));
  return `${question} ${JSON.stringify(sorted)}`;
}

/** A kept page lacks the answer. */
export class NotKept extends AnswerError {
  constructor() {
    super({ code: "not_kept" });
  }
}

/** Whether a question can be answered: a kept page holds some of them. */
export function holds(question, request = {}) {
  return !isOffline || keyOf(question, request) in saved.answers;
}

async function fetchAnswer(question, request) {
  if (isOffline) throw new NotKept();
  let response;
  try {
    response = await fetch(`/api/${question}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
    });
  } catch {
    throw new AnswerError({ code: "no_answer" });
  }
  // What stands between the page and the explorer, as a proxy, answers in its own words.
  const body = await response.json().catch(() => null);
  if (body === null || (!response.ok && !body.error)) {
    throw new AnswerError({ code: "status", values: { status: response.status } });
  }
  if (!response.ok) throw new AnswerError(body);
  return body.answer;
}

/** The answer to a question that is not kept: it changes what the server has. */
export const send = fetchAnswer;

/** The answer to a question; errors are not remembered. */
export function ask(question, request = {}) {
  const key = keyOf(question, request);
  if (!answers.has(key)) {
    const answer = key in saved.answers ? Promise.resolve(saved.answers[key]) : fetchAnswer(question, request);
    answers.set(key, answer);
    answer.catch(() => answers.delete(key));
  }
  return answers.get(key);
}

/** The answer to a question as it is now, which takes the place of the one before. */
export async function askAnew(question, request = {}) {
  const answer = await fetchAnswer(question, request);
  answers.set(keyOf(question, request), Promise.resolve(answer));
  return answer;
}

/** All answers that belong to a sentence, by their questions, for a page that is kept. */
export async function answersFor(text) {
  const found = {};
  for (const [key, answer] of answers) {
    const request = JSON.parse(key.slice(key.indexOf(" ") + 1));
    if (request.text === undefined || request.text === text) found[key] = await answer;
  }
  return found;
}

const decoded = new WeakMap();

/** A tensor of an answer as { shape, values }. */
export function tensor(one) {
  if (!decoded.has(one)) {
    const bytes = Uint8Array.from(atob(one.data), (character) => character.charCodeAt(0));
    decoded.set(one, { shape: one.shape, values: new Float32Array(bytes.buffer) });
  }
  return decoded.get(one);
}
