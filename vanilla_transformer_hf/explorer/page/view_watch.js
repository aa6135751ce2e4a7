// Watch: the curves of a training run, and what its checkpoints make of one sentence.

import { tensor } from "./api.js";
import { lineChart } from "./chart.js";
import { HEADS, sequential } from "./colors.js";
import { attempt, button, choice, faultNote, faultText, html, label, labelled, number, offered } from "./dom.js";
import { range, roving, row, section, small, table } from "./dom.js";
import { heatMap } from "./heat_map.js";
import { say } from "./texts.js";

const LOSSES = ["loss", "eval_loss"];
const SCORES = ["eval_bleu", "eval_chrf", "eval_exact_match", "eval_accuracy"];
const count = (value) => value.toLocaleString(document.documentElement.lang);

/** Losses or scores over the steps of a run, with a mark at the step that is looked at; null without any. */
function curves(run, key, names, shown) {
  const series = names.flatMap((one, place) => {
    const name = say(`watch.${one}`);
    const points = (run.curves[one] ?? []).filter(([, value]) => value !== null);
    const text = (step, value) => say("watch.point", { name, step: count(step), value: number(value, 4) });
    const drawn = points.map(([at, value]) => ({ at, value, text: text(at, value) }));
    return drawn.length ? [{ name, color: HEADS[place], points: drawn }] : [];
  });
  if (!series.length) return null;
  const title = say(`watch.${key}`);
  const values = series.flatMap(({ points }) => points.map((one) => one.value));
  const chart = lineChart({
    title: `${title}: ${series.map(({ points }) => points.at(-1).text).join("; ")}`,
    file: title,
    width: Math.min(560, document.getElementById("view").clientWidth - 68), // all of it, on a phone, too
    most: key === "scores" ? 100 : Math.max(...values) || 1,
    farthest: run.steps,
    series,
    ends: ["0", say("watch.steps", { steps: count(run.steps) })],
    mark: shown,
  });
  return html("div", { class: "side" }, html("h3", {}, title), chart);
}

/** How far a run is: one line, what is missing, and its curves. */
export function runSection(run, shown) {
  const values = { step: count(run.step), steps: count(run.steps), count: run.checkpoints.length };
  return section(
    say("watch.run", { name: run.name }),
    html("p", { id: "progress" }, say(run.steps ? "watch.progress" : "watch.no_log", values)),
    run.problem ? html("p", { class: "error", role: "alert", lang: "en" }, run.problem) : null,
    run.checkpoints.length ? null : html("p", { class: "note" }, say("watch.no_checkpoint")),
    html("div", { class: "sides" }, [curves(run, "losses", LOSSES, shown), curves(run, "scores", SCORES, shown)]),
  );
}

/** The translations, one under the other; each step leads to its attention. */
function translations(found, chosen, { set }) {
  const rows = found.map(([step, one]) => {
    const choose = button(count(step), () => set({ checkpoint: step }), {
      id: `checkpoint-${step}`,
      "aria-pressed": step === chosen,
    });
    const isFault = one instanceof Error;
    const text = isFault ? small(faultText(one).text) : one.text || say("output.empty");
    const cells = [html("td", { class: "text", dir: "auto" }, text), isFault ? "–" : number(one.score, 4)];
    return row({ class: step === chosen ? "chosen" : null }, null, choose, ...cells);
  });
  const heads = [say("watch.step"), say("best.translation"), say("best.score")];
  return roving(html("div", { class: "scroll" }, table({ class: "n-best" }, heads, rows)));
}

/** The attention of a checkpoint; the slider leads through all of them. */
function attentionSection(found, at, context) {
  const { state, set, models } = context;
  const [step, one] = found[at];
  const layers = one.weights.shape[0];
  const layer = state.layer >= 0 && state.layer < layers ? state.layer : found.at(-1)[1].layer;
  const which = say("attention.of_mean");
  const pictureOf = ([, { part, rows, columns, weights }]) => {
    const { shape, values } = tensor(weights);
    const size = shape[1] * shape[2];
    return heatMap({
      title: say("attention.title", { name: say(`attention.name_${part}`), layer, which }),
      id: "moment",
      values: values.subarray(layer * size, (layer + 1) * size),
      rowLabels: rows.map(label),
      columnLabels: columns.map(label),
      cell: columns.length <= 24 ? 36 : columns.length <= 80 ? 18 : 9,
      scale: sequential(1),
    });
  };
  const nameOf = (place) => say("watch.at", { step: count(found[place][0]) });
  const text = html("span", {}, nameOf(at));
  const picture = html("div", {}, pictureOf(found[at]));
  const slider = html("input", {
    type: "range",
    id: "slider",
    style: "width: 280px; max-width: 100%",
    min: 0,
    max: found.length - 1,
    value: at,
    "aria-valuetext": nameOf(at),
    input: () => {
      text.textContent = nameOf(slider.value);
      slider.setAttribute("aria-valuetext", text.textContent);
      picture.replaceChildren(pictureOf(found[slider.value]));
    },
    change: () => set({ checkpoint: found[slider.value][0] }),
  });
  const isOpen = (name) => models.some((model) => model.name === name);
  const newest = found.at(-1)[1].model;
  const go = (changes) => set({ model: one.model, ...changes });
  return section(
    say("watch.attention"),
    html("div", { class: "controls" }, [
      labelled(text, slider),
      choice(
        say("head.layer"),
        layer,
        offered(range(layers)),
        (value) => set({ layer: Number(value) }),
        "watch-layer",
      ),
      button(say("watch.open"), () => go({ view: "translate" }), {
        id: "open-checkpoint",
        disabled: !isOpen(one.model),
      }),
      button(say("watch.beside"), () => go({ view: "intervene", model_b: newest, layer }), {
        id: "beside-newest",
        disabled: one.model === newest || !isOpen(one.model) || !isOpen(newest),
      }),
    ]),
    picture,
  );
}

export async function watchView(context) {
  const { state, ask, run } = context;
  if (!run.checkpoints.length) return [runSection(run)];
  if (state.text.trim() === "") return [runSection(run), html("p", { class: "note" }, say("page.empty_text"))];
  const asked = { text: state.text, target_lang: state.target_lang };
  const found = [];
  // The newest first: the others follow while it is kept.
  for (const step of run.checkpoints.toReversed()) {
    found.unshift([step, await attempt(ask("moment", { step, ...asked }))]);
  }
  const [, last] = found.at(-1);
  if (last instanceof Error && last.code !== "removed") return [runSection(run), faultNote(last)];
  const seen = found.filter(([, one]) => !(one instanceof Error) && one.weights);
  const wanted = seen.findIndex(([step]) => step === state.checkpoint);
  const at = wanted < 0 ? seen.length - 1 : wanted;
  const chosen = seen[at]?.[0];
  return [
    runSection(run, chosen),
    section(say("watch.sentence"), small(say("watch.help")), translations(found, chosen, context)),
    seen.length ? attentionSection(seen, at, context) : html("p", { class: "note" }, say("watch.no_weights")),
  ];
}
