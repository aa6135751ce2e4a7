// The table of views: a new view is one file and one row.

import { analyseView } from "./view_analyse.js";
import { attentionView } from "./view_attention.js";
import { headView } from "./view_head.js";
import { interveneView } from "./view_intervene.js";
import { tourView } from "./view_tour.js";
import { translateView } from "./view_translate.js";
import { walkView } from "./view_walk.js";

// What is done with a sentence, by the kind of the model.
export const ACTION_LABELS = { translation: "Translate", causal: "Continue", masked: "Fill" };

// Name in the address, name on the tab, what draws it, whether it needs a model of this package,
// and whether one that reads text.
export const VIEWS = [
  { name: "tour", title: "Tour", draw: tourView, needsOurs: true, needsText: true },
  { name: "translate", title: "Translate", draw: translateView, needsOurs: false },
  { name: "attention", title: "Attention", draw: attentionView, needsOurs: false },
  { name: "head", title: "Head", draw: headView, needsOurs: true },
  { name: "walk", title: "Walk", draw: walkView, needsOurs: true },
  { name: "analyse", title: "Analyse", draw: analyseView, needsOurs: false },
  { name: "intervene", title: "Intervene", draw: interveneView, needsOurs: true },
];
