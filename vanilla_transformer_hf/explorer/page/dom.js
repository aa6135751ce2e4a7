// Elements: HTML and SVG made by calls, and what screen readers announce.

const SVG = "http://www.w3.org/2000/svg";

/** Give an element attributes (functions are listeners) and children (elements, texts, arrays; null is nothing). */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
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

/** A label with its control. */
export function labelled(text, control, hint) {
  return html("label", { class: "field", title: hint }, html("span", {}, text), control);
}

/** A choice among values; `options` are [value, text] pairs. */
export function choice(text, value, options, change) {
  const select = html(
    "select",
    { change: (event) => change(event.target.value) },
    options.map(([name, label]) =>
      html("option", { value: name, selected: String(name) === String(value) }, label),
    ),
  );
  return labelled(text, select);
}

export function checkbox(text, checked, change) {
  const box = html("input", {
    type: "checkbox",
    checked,
    change: (event) => change(event.target.checked),
  });
  return html("label", { class: "check" }, box, html("span", {}, text));
}

export function button(text, click, attributes) {
  return html("button", { type: "button", click, ...attributes }, text);
}

/** A part of a view with a heading. */
export function section(title, ...children) {
  return html("section", {}, html("h2", {}, title), ...children);
}

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** A colour of the theme. */
export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A function that has `draw` called in the next frame of the screen, once, however often it is called before. */
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

/** The context of a canvas that is made so large, in pixels of the page, and sharp on any screen. */
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
