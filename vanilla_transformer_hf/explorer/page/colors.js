// Colours of numbers: one scale for shares of 1, one around 0, and one colour for each head.

export const HEADS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a4fbf", "#a33b3b"];

export function parse(color) {
  const hex = color.replace("#", "");
  return [0, 2, 4].map((place) => parseInt(hex.slice(place, place + 2), 16));
}

function mix(from, to, share) {
  const parts = from.map((value, place) => Math.round(value + (to[place] - value) * share));
  return `rgb(${parts.join(",")})`;
}

/** value -> colour, from 0 (paper) to `most`; small values show, too. */
export function sequential(most = 1) {
  const from = parse(themed("cell"));
  const to = parse(themed("ink-strong"));
  return (value) => mix(from, to, Math.sqrt(Math.min(1, Math.max(0, value / (most || 1)))));
}

/** value -> colour: blue above 0, orange below. */
export function diverging(most) {
  const zero = parse(themed("cell"));
  const above = parse(themed("above"));
  const below = parse(themed("below"));
  return (value) => {
    const share = Math.sqrt(Math.min(1, Math.abs(value) / (most || 1)));
    return mix(zero, value < 0 ? below : above, Number.isFinite(value) ? share : 1);
  };
}

/** The relative luminance of a colour, as WCAG defines it. */
function luminance(parts) {
  const [red, green, blue] = parts.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Black or white, whichever has more contrast with a colour "rgb(…)": at least 4.58. */
export function readableOn(color) {
  const light = luminance(color.match(/\d+/g).map(Number));
  return (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) ? "#000" : "#fff";
}

/** The scale for values: shares if all lie in 0 … 1. */
export function scaleFor(values) {
  let least = Infinity,
    most = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || Math.abs(value) > 1e30) continue;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  if (least >= 0 && most <= 1.0001) return sequential(1);
  return least >= 0 ? sequential(most) : diverging(Math.max(Math.abs(least), Math.abs(most)));
}

// ------------------------------------ the theme: the system's, unless another was chosen, which the browser remembers

const NAME = "explorer-theme";

export function currentTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  return document.documentElement.dataset.theme ?? system;
}

export function chooseTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // A page in a closed frame, and some browsers, have no storage: it lasts as long as the page.
  }
}

/** A colour of the theme: one of the two of style.css. */
export function themed(name) {
  const colors = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).match(/#\w+/g);
  return colors.at(currentTheme() === "dark" ? -1 : 0);
}

/** Show the theme that was chosen earlier. */
export function restoreTheme() {
  let name = null;
  try {
    name = localStorage.getItem(NAME);
  } catch {
    // no storage
  }
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
}
