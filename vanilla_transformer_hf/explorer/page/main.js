// The page: its header, its views, and the state behind the # of the address.

import { AnswerError, ask, firstState, isOffline } from "./api.js";
import { announce, button, choice, html, labelled } from "./dom.js";
import { savePage } from "./keep.js";
import { readState, translateRequest, writeState } from "./state.js";
import { ACTION_LABELS, VIEWS } from "./views.js";

const header = document.getElementById("header"),
  view = document.getElementById("view");
let models = [],
  state = readState(location.hash.slice(1) || firstState),
  drawing = 0;

/** Change what is shown. What depends on the sentence falls away with it. */
function set(changes) {
  const isOther = [
    "text",
    "model",
    "prefix",
    "num_beams",
    "length_penalty",
    "target_lang",
    "applied",
    "off",
  ].some((name) => name in changes && changes[name] !== state[name]);
  const fresh = isOther ? { hypothesis: 0, ids: "", row: -1, column: -1 } : {};
  if ("text" in changes && changes.text !== state.text)
    Object.assign(fresh, { prefix: "", target: "" });
  state = { ...state, ...fresh, ...changes };
  history.replaceState(null, "", `#${writeState(state)}`);
  return draw();
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

function drawHeader() {
  const action = ACTION_LABELS[models.find((model) => model.name === state.model).kind];
  const names = models.map((model) => [model.name, model.name]);
  const input = html("textarea", {
    id: "text",
    rows: 2,
    value: state.text,
    spellcheck: "false",
    lang: "",
    placeholder: models.find((model) => model.name === state.model).mask
      ? "A sentence with a mask token where a token is missing"
      : "A sentence",
  });
  const submit = (event) => {
    event.preventDefault();
    set({ text: input.value, prefix: "" });
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) submit(event);
  });
  const tabs = VIEWS.map((one) =>
    button(one.name === "translate" ? action : one.title, () => set({ view: one.name }), {
      role: "tab",
      id: `tab-${one.name}`,
      "aria-selected": String(one.name === state.view),
      "aria-controls": "view",
      tabindex: one.name === state.view ? 0 : -1,
    }),
  );
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next =
      VIEWS[
        (VIEWS.findIndex((one) => one.name === state.view) + step + VIEWS.length) % VIEWS.length
      ];
    set({ view: next.name });
    document.getElementById(`tab-${next.name}`).focus();
  };
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const current = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  header.replaceChildren(
    html(
      "form",
      { class: "sentence", submit },
      models.length > 1
        ? choice("Model", state.model, names, (model) => set({ model }))
        : html("p", { class: "name" }, state.model),
      labelled("Sentence", input),
      html("button", { type: "submit", class: "primary", id: "translate" }, action),
    ),
    html(
      "div",
      { class: "bar" },
      html("div", { role: "tablist", "aria-label": "Views", keydown: move }, tabs),
      html(
        "span",
        { class: "tools" },
        isOffline
          ? html("span", { class: "note" }, "kept page")
          : button("Save page", () => savePage(state), { id: "save" }),
        button(
          current === "dark" ? "Light" : "Dark",
          () => {
            theme(current === "dark" ? "light" : "dark");
            draw();
          },
          { "aria-label": "change the theme" },
        ),
      ),
    ),
  );
}

function fault(error) {
  const isKnown = error instanceof AnswerError;
  if (!isKnown) console.error(error);
  const text = isKnown ? error.message : "Something went wrong; see the browser console.";
  announce(text);
  return html("p", { class: "error", role: "alert" }, text);
}

async function draw() {
  const mine = ++drawing;
  const focused = document.activeElement?.id;
  drawHeader();
  if (focused) document.getElementById(focused)?.focus();
  const one = VIEWS.find((each) => each.name === state.view) ?? VIEWS[0];
  view.setAttribute("role", "tabpanel");
  view.setAttribute("aria-labelledby", `tab-${one.name}`);
  view.setAttribute("aria-busy", "true");
  let made;
  try {
    made = await content(one);
  } catch (error) {
    made = fault(error);
  }
  if (mine !== drawing) return; // something newer is shown
  const kept = window.scrollY;
  view.replaceChildren(...[made].flat());
  window.scrollTo(0, kept);
  view.setAttribute("aria-busy", "false");
}

async function content(one) {
  const model = models.find((each) => each.name === state.model);
  if (one.needsOurs && !model.is_ours) {
    return html(
      "p",
      { class: "note" },
      `${one.title} needs a model of this package; ${model.name} shows its attention alone.`,
    );
  }
  if (state.text.trim() === "") {
    return html(
      "p",
      { class: "note" },
      "Type a sentence and press Enter: every number of its translation can be seen here.",
    );
  }
  const translation = await ask("translate", translateRequest(state));
  return one.draw({ state, set, ask, model, models, translation });
}

addEventListener("hashchange", () => {
  if (location.hash.slice(1) === writeState(state)) return;
  state = { ...readState(location.hash.slice(1)) };
  state.model ||= models[0].name;
  draw();
});

models = await ask("models");
if (!models.some((model) => model.name === state.model)) state.model = models[0].name;
document.title = `${state.model} – model explorer`;
draw();
