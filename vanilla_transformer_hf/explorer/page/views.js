// The table of views: a new view is one file and one row.

import { analyseView } from "./view_analyse.js";
import { attentionView } from "./view_attention.js";
import { headView } from "./view_head.js";
import { interveneView } from "./view_intervene.js";
import { tourView } from "./view_tour.js";
import { translateView } from "./view_translate.js";
import { walkView } from "./view_walk.js";
import { watchView } from "./view_watch.js";

// Name in the address and of its texts, what draws it, whether it needs a model of this package,
// and whether one that reads text; or that it is about a run that is watched.
export const VIEWS = [
  { name: "tour", draw: tourView, needsOurs: true, needsText: true },
  { name: "translate", draw: translateView, needsOurs: false },
  { name: "attention", draw: attentionView, needsOurs: false },
  { name: "head", draw: headView, needsOurs: true },
  { name: "walk", draw: walkView, needsOurs: true },
  { name: "analyse", draw: analyseView, needsOurs: false },
  { name: "intervene", draw: interveneView, needsOurs: true },
  { name: "watch", draw: watchView, isOfRun: true },
];
