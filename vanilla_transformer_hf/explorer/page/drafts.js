// What is typed and not yet used stays when a view is drawn again, and while others are shown.

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
