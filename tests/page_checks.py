"""What is checked of every view of the explorer's page: axe-core's rules, and that the keyboard reaches all of it."""

# Violations of axe-core, which has to be in the page.
COUNT = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.map(
  (one) => [one.id, one.impact, one.nodes.map((node) => node.html.slice(0, 200))])"""
# Ids of all that can be used; tabs are views of their own.
USABLE = """() => [...document.querySelectorAll(
  "button, select, input, textarea, a[href], [role=button], [role=group][tabindex='0'], .map")]
  .filter((one) => !one.disabled && one.getAttribute("role") !== "tab" && one.checkVisibility())
  .map((one) => one.id || one.outerHTML.slice(0, 120))"""
# Where arrow keys lead from the control that has the focus.
ARROWS = """() => {
  const found = new Set(), open = [document.activeElement];
  while (open.length) {
    const one = open.pop();
    if (found.has(one)) continue;
    found.add(one);
    for (const key of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"]) {
      one.focus();
      one.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      if (document.activeElement !== one) open.push(document.activeElement);
    }
  }
  const start = [...found][0];
  start.focus();
  return [...found].map((one) => one.id || one.outerHTML.slice(0, 120));
}"""


def by_keyboard(page):
    """Ids of what can be used and is not reached by Tab and arrow keys, and how many stops Tab makes."""
    page.evaluate("document.activeElement.blur()")
    usable = page.evaluate(USABLE)
    assert len({*usable}) == len(usable), "ids are not unique"
    reached, stops = set(), 0
    while stops < 80:
        page.keyboard.press("Tab")
        kind = page.evaluate("[document.activeElement.tagName, document.activeElement.getAttribute('role')]")
        if kind[0] == "BODY":
            break
        stops += 1
        is_alone = kind[1] == "tab" or kind[0] in ("SELECT", "TEXTAREA")
        own = page.evaluate("document.activeElement.id || document.activeElement.outerHTML.slice(0, 120)")
        reached |= {own} if is_alone else {*page.evaluate(ARROWS)}
    radios = {one for one in usable if one.startswith("hypothesis-")}  # the browser moves between them
    return {*usable} - reached - radios, stops
