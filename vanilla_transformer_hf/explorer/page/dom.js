// Elements: HTML and SVG made by calls, and what screen readers announce.

import { AnswerError, isOffline } from "./api.js";
import { hasText, say } from "./texts.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * Give an element attributes (functions are listeners) and children (elements, texts, arrays; null
 * is nothing).
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value" && "defaultValue" in element) element.defaultValue = value;
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

export function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A part of a picture that is pressed as a button. */
export function svgButton(attributes, press, ...children) {
  const keydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press();
  };
  return svg("g", { role: "button", click: press, keydown, ...attributes }, children);
}

/** A text as an id: the focus stays on a control when a view is drawn again, by its id. */
export function idOf(text) {
  return text.toLowerCase().replaceAll(/[^\p{L}\p{N}.-]+/gu, "-");
}

/** A label with its control. */
export function labelled(text, control, hint) {
  return html("label", { class: "field", title: hint }, html("span", {}, text), control);
}

/** A choice among values; `options` are [value, text, whether it cannot be chosen]. */
export function choice(text, value, options, change, id) {
  const select = html("select", { id, change: (event) => change(event.target.value) }, [
    options.map(([name, label, disabled]) =>
      html("option", { value: name, selected: String(name) === String(value), disabled }, label),
    ),
  ]);
  return labelled(text, select);
}

export function checkbox(text, checked, change) {
  const box = html("input", {
    type: "checkbox",
    id: idOf(text),
    checked,
    change: (event) => change(event.target.checked),
  });
  return html("label", { class: "check" }, box, html("span", {}, text));
}

/** A field for a sentence, which Enter uses. */
export function sentenceBox(id, attributes, use) {
  const keydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!isOffline) use(event.target.value);
  };
  return html("textarea", { id, dir: "auto", lang: "", readonly: isOffline, ...attributes, keydown });
}

/** A box for a number between two others; any other is refused beside it and changes nothing. */
export function numberBox(id, text, [least, most, step], { value, placeholder, disabled }, change) {
  const note = html("span", { role: "alert", id: `${id}-error`, hidden: true });
  const check = (box) => {
    const typed = Number(box.value);
    const isWhole = step !== 1 || Number.isInteger(typed);
    const isGood = !box.validity.badInput && (box.value === "" || (typed >= least && typed <= most && isWhole));
    note.hidden = isGood;
    note.className = isGood ? "" : "error";
    note.textContent = isGood ? "" : say(step === 1 ? "number.whole" : "number.any", { name: text, least, most });
    box.setAttribute("aria-invalid", String(!isGood));
    return isGood;
  };
  const box = html("input", {
    type: "number",
    id,
    min: least,
    max: most,
    step,
    value,
    placeholder,
    disabled,
    "aria-describedby": note.id,
    input: (event) => event.target.validity.badInput || check(event.target), // "-" begins a number
    change: (event) => check(event.target) && change(event.target.value),
  });
  check(box);
  return html("div", { class: "number" }, labelled(text, box), note);
}

export function button(text, click, attributes) {
  const name = attributes?.["aria-label"] ?? text;
  const id = typeof name === "string" ? idOf(name) : null;
  return html("button", { type: "button", id, click, ...attributes }, text);
}

/** The look of a choice that a kept page may lack; trying it shows a note. */
export function kept(isThere, className = "") {
  return isThere ? { class: className || null } : { class: `${className} missing`, title: say("page.missing") };
}

/** A part that scrolls by keyboard, too; for contents without controls. */
export function scroller(label, attributes, ...children) {
  const named = { role: "group", tabindex: 0, "aria-label": say("page.scrolls", { name: label }) };
  return html("div", { ...named, ...attributes, class: `scroll ${attributes?.class ?? ""}` }, children);
}

/** A part of a view with a heading. */
export function section(title, ...children) {
  return html("section", {}, html("h2", {}, title), ...children);
}

export function small(...children) {
  return html("p", { class: "small" }, children);
}

/** A row of a table: its heading, if it has one, and its cells, as elements or as what stands in them. */
export function row(attributes, heading, ...cells) {
  const all = cells.flat(Infinity).map((cell) => (cell instanceof HTMLTableCellElement ? cell : html("td", {}, cell)));
  return html("tr", attributes, heading === null ? null : html("th", { scope: "row" }, heading), all);
}

/** A table; a column whose heading is "" has none. */
export function table(attributes, headings, rows) {
  const heads = headings.map((text) => (text === "" ? html("td") : html("th", { scope: "col" }, text)));
  return html("table", attributes, [html("thead", {}, html("tr", {}, heads)), html("tbody", {}, rows)]);
}

/** The cell of a table with a bar of this share. */
export function barCell(share) {
  const bar = html("span", { class: "bar", style: `width:${(100 * share).toFixed(1)}%` });
  return html("td", { class: "bar-cell" }, bar);
}

/** The numbers from 0 up. */
export function range(count) {
  return Array.from({ length: count }, (_, place) => place);
}

/** Options of a choice: values, their texts, and which a kept page lacks, as `can` says. */
export function offered(values, text = String, can = () => true) {
  return values.map((value) => [value, text(value), !can(value)]);
}

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** A function that has `draw` called in the next frame, once, however often it is called before. */
export function oncePerFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

/** The context of a canvas that is made so large, in pixels of the page; sharp on any screen. */
export function contextOf(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

/** A number as it is shown: six significant digits, all that float32 can be trusted with. */
export function number(value, digits = 6) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Math.abs(value) > 1e30) return value < 0 ? "−∞" : "∞";
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(2).replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

export function percent(value) {
  return value >= 0.9995
    ? "100 %"
    : value >= 0.0995
      ? `${(100 * value).toFixed(1)} %`
      : `${(100 * value).toFixed(2)} %`;
}

/** A part that scrolls over something of this height, and is drawn again when it is scrolled or resized. */
export function scrolled(part, height, draw) {
  part.style.height = `${Math.min(height, Math.round(window.innerHeight * 0.72))}px`;
  part.addEventListener("scroll", draw);
  new ResizeObserver(draw).observe(part);
}

const NAMED = 4;

/** The text of a key about a token and those of `others`, { name, weight }, that weigh most. */
export function strongest(key, name, others) {
  const first = others.toSorted((a, b) => b.weight - a.weight).slice(0, NAMED);
  return say(key, { name, others: first.map((one) => `${one.name} ${percent(one.weight)}`).join(", ") });
}

// What is written from right to left: the blocks that Unicode keeps for it.
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/**
 * What a piece is called: "·" begins what continues a word; a letter's parts are counted. Text from
 * right to left is isolated: the dot, and the numbers behind it, would stand on its other side.
 */
export function label(piece) {
  const text = RIGHT_TO_LEFT.test(piece.text) ? `\u2068${piece.text}\u2069` : piece.text;
  const counted = piece.parts > 1 ? `${text} ${piece.part}/${piece.parts}` : text;
  return piece.continues ? `·${counted}` : counted;
}

// ------------------------------------- one tab stop for many controls: Tab goes to one, arrow keys to those beside it

const AWAY = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const FIRST = '[aria-pressed="true"], .chosen, .best';

/** How far an item lies in a direction: along it, and three times what it lies beside it. */
function distance(from, to, [right, down]) {
  const x = (to.left + to.right - from.left - from.right) / 2;
  const y = (to.top + to.bottom - from.top - from.bottom) / 2;
  const along = right * x + down * y;
  return along > 1 ? along + 3 * Math.abs(down * x + right * y) : Infinity;
}

function neighbour(items, from, direction) {
  const box = from.getBoundingClientRect();
  let best = null;
  let least = Infinity;
  for (const item of items) {
    const away = distance(box, item.getBoundingClientRect(), direction);
    if (away < least) [best, least] = [item, away];
  }
  return best;
}

/** Give a container whose controls `selector` finds a single tab stop. */
export function roving(container, selector = "button") {
  const items = [...container.querySelectorAll(selector)].filter((item) => !item.disabled);
  let stop = items.find((item) => item.matches(FIRST)) ?? items[0];
  for (const item of items) item.setAttribute("tabindex", item === stop ? 0 : -1);
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (!items.includes(item)) return;
    stop.setAttribute("tabindex", -1);
    stop = item;
    stop.setAttribute("tabindex", 0);
  });
  container.addEventListener("keydown", (event) => {
    if (!items.includes(event.target) || event.altKey || event.ctrlKey || event.metaKey) return;
    const ends = { Home: items[0], End: items.at(-1) };
    const isMove = event.key in AWAY;
    if (!isMove && !(event.key in ends)) return;
    event.preventDefault();
    (isMove ? neighbour(items, event.target, AWAY[event.key]) : ends[event.key])?.focus();
  });
  return container;
}

// ---------------------------------------------------- what is typed and not yet used stays when a view is drawn again

const drafts = new Map();

/** Remember what is typed into the controls with an id inside an element. */
export function watchDrafts(element) {
  element.addEventListener("input", ({ target }) => {
    if (target.matches('textarea, input[type="number"]') && target.id) {
      drafts.set(target.id, { given: target.defaultValue, typed: target.value });
    }
  });
}

/** Put what was typed into new controls, where these have the values that it was typed over. */
export function restoreDrafts(element) {
  for (const [id, { given, typed }] of drafts) {
    const control = element.querySelector(`#${CSS.escape(id)}`);
    if (!control) continue;
    if (control.defaultValue === given && typed !== given) control.value = typed;
    else drafts.delete(id);
  }
}

/** Forget what was typed into a control. */
export function dropDraft(id) {
  drafts.delete(id);
}

// -------------------------------------- errors: one of a question is shown in place of its answer, below its controls

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
