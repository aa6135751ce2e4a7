// The source of a model that reads recordings or images: a file that is open, or one of the disk.

import { AnswerError, holds, isOffline, send } from "./api.js";
import { announce, choice, html, labelled } from "./dom.js";
import { faultText } from "./faults.js";
import { nextState, translateRequest } from "./state.js";
import { say } from "./texts.js";

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
export function fileField(set) {
  let model = null;
  const fault = html("p", { role: "alert", id: "file-error", hidden: true });
  const files = choice(
    html("span", { "data-text": "file.file" }),
    "",
    [],
    (text) => set({ text, prefix: "" }),
    "file",
  );
  const select = files.querySelector("select");
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
    select.replaceChildren(
      ...named.map((name) => {
        const isThere = holds("translate", translateRequest(nextState(state, { text: name })));
        const options = { value: name, disabled: !isThere && name !== state.text };
        return html("option", options, name || say("file.none"));
      }),
    );
    select.value = state.text;
  }
  return { element, update };
}
