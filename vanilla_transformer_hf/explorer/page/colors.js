// Colours of numbers: one scale for shares of 1, one around 0, and one colour for each head.

import { themed } from "./dom.js";

export const HEADS = [
  "#0072b2",
  "#d55e00",
  "#009e73",
  "#cc79a7",
  "#8a6d00",
  "#56b4e9",
  "#7a4fbf",
  "#a33b3b",
];

function parse(color) {
  const hex = color.replace("#", "");
  return [0, 2, 4].map((place) => parseInt(hex.slice(place, place + 2), 16));
}

function mix(from, to, share) {
  return `rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * share)).join(",")})`;
}

/** value -> colour, from 0 (paper) to `most`; small values show, too. */
export function sequential(most = 1) {
  const from = parse(themed("cell")),
    to = parse(themed("ink-strong"));
  return (value) => mix(from, to, Math.sqrt(Math.min(1, Math.max(0, value / (most || 1)))));
}

/** value -> colour: blue above 0, orange below. */
export function diverging(most) {
  const zero = parse(themed("cell")),
    above = parse(themed("above")),
    below = parse(themed("below"));
  return (value) => {
    const share = Math.sqrt(Math.min(1, Math.abs(value) / (most || 1)));
    return mix(zero, value < 0 ? below : above, Number.isFinite(value) ? share : 1);
  };
}

/** Black or white, whichever can be read on a colour "rgb(…)". */
export function readableOn(color) {
  const [red, green, blue] = color.match(/\d+/g).map(Number);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
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
