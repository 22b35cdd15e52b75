// What the page knows, and what the person looking at it has chosen.
import { byGroups, NORMAL } from "./by_groups.js";
import { quiet } from "./elements.js";
import { source, unpack } from "./source.js";

export const UNKNOWN = -1;
// taken: the class that it is taken for; by: the model that judges, where it is not the store's best.
const NO_FILTERS = { class: "", shard: "", only: "", taken: "", by: "", text: "" };

export const state = {
  // known: filled by the functions below and by main.js
  overview: null,
  ids: [],
  label: null,
  shard: null,
  columns: {},
  held: null, // what payload.held_out gives
  stages: {},
  // chosen: filled by the views
  view: "overview",
  selected: null,
  missing: null, // an id of the address that no sample has, instead of a selected one
  missingPicks: [], // such ids of the basket in the address
  lostBasket: "", // the key of the address's basket where this tab does not have it, until one is made here
  lost: [], // such parts of the address, to be told once
  lasso: null, // corners, in the places of lassoIn
  lassoIn: null,
  hidden: new Set(), // names in the map's legend
  colour: "class",
  space: null, // until one is chosen: see placed()
  filters: { ...NO_FILTERS },
  basket: new Set(), // rows to forget, perhaps
  pair: { before: "", after: "", rows: "held-out", show: "changed", class: "" }, // models compared, and what is listed
  order: { key: "", falling: false }, // of the pictures beside the map
  check: { list: "suspects", class: "", shard: "" },
  judge: "", // who judged the suspected labels, once that list was made
  out: new Set(),
  model: null,
};

// Every sample again.
export function clearFilters() {
  state.filters = { ...NO_FILTERS };
  state.lasso = null;
  state.hidden.clear();
}

export async function loadRows() {
  Object.assign(state, unpack(await source.get("ids")));
}

export async function loadColumns() {
  Object.assign(state.columns, unpack((await source.get("columns")).columns));
}

export async function loadHeldOut() {
  state.held = unpack(await source.get("held-out"));
}

export const className = (k) => state.overview.report.classes[k] ?? "–";
export const shardName = (k) => state.overview.shards[k].name;
export const shardNames = () => state.overview.shards.map((s) => s.name);
export const shardNumber = (name) => shardNames().indexOf(name);
// The held-out shard's number, and the first of its rows.
export const heldOutShard = () => state.overview.shards.findIndex((s) => s.role === "held-out");
export const heldOutStart = () => state.shard.indexOf(heldOutShard());

// As `taftcache run` calls them.
const TITLES = {
  base: "before training (new head)",
  "models/mean": "mean of the components",
  "models/weighted": "weighted sum of the shards",
  "models/head": "head alone, of all rows",
  "models/exact": "model of all rows",
};
export const modelTitle = (name) => TITLES[name] || name.replace("components/", "component ");

const COLUMNS = { base: "base", "models/head": "head" };
const spread = new WeakMap(); // classes of all rows, by those of the held-out ones

// A model's class of every row: of the held-out rows alone where only those were asked for; null while none are known.
export function classesBy(model) {
  if (!model || model === state.overview.model) return state.columns.model ?? null;
  if (state.columns[COLUMNS[model]]) return state.columns[COLUMNS[model]];
  const found = state.held?.models[model];
  if (!found) return null;
  if (!spread.has(found)) {
    const classes = new Int32Array(state.ids.length).fill(UNKNOWN),
      start = heldOutStart();
    state.held.rows.forEach((row, k) => (classes[start + row] = found[k]));
    spread.set(found, classes);
  }
  return spread.get(found);
}

// The model that judges the map's samples, with its class and its margin of every row; null what is not known.
export function judge() {
  const name = state.filters.by || state.overview.model,
    best = name === state.overview.model;
  return { name, best, classes: classesBy(name), margin: (best && state.columns.margin) || null };
}

// Whether a model was trained on the rows of a shard, given by its number: "yes", "perhaps" or "".
export const trainedOn = (shard, model) => state.overview.trained[model]?.[shardName(shard)] ?? "";

const BY = {
  yes: ", by a model that was trained on it",
  perhaps: ", by a model that was perhaps trained on it",
  "": "",
};

// What the model that judges takes a row for, in words; "" where that is not known.
export function takenFor(row) {
  const { name, classes } = judge();
  if (!classes || classes[row] === UNKNOWN) return "";
  return `, taken for ${className(classes[row])}${BY[trainedOn(state.shard[row], name)]}`;
}

// A row in a few words.
export function inWords(row) {
  const label = state.overview.what ? "" : `, class ${className(state.label[row])}`;
  return `${state.ids[row]}${label}, shard ${shardName(state.shard[row])}${takenFor(row)}`;
}

// The shards of which nothing says which rows a model saw.
export const unsure = (model) =>
  Object.entries(state.overview.trained[model] ?? {})
    .filter(([, saw]) => saw === "perhaps")
    .map(([name]) => name);

// Confusion and accuracies of predictions on the held-out rows.
export function judged(predictions) {
  const K = state.overview.report.classes.length,
    { labels } = state.held;
  const counts = new Int32Array(K * K),
    of = new Int32Array(K);
  let right = 0;
  for (let row = 0; row < labels.length; row++) {
    counts[labels[row] * K + predictions[row]]++;
    of[labels[row]]++;
    if (labels[row] === predictions[row]) right++;
  }
  return {
    right,
    rows: labels.length,
    all: state.held.of,
    accuracy: right / labels.length,
    counts,
    of,
    judged: heldOutGroups([...labels.keys()], (row) => labels[row] === predictions[row]),
  };
}

// What byGroups says of some held-out rows, of which those count that hit(row) is true of; null without groups.
export function heldOutGroups(rows, hit) {
  const { groups, unsearched } = state.held;
  if (!groups) return unsearched ? { groups: 0, rows: rows.length, quantile: NORMAL } : null;
  return byGroups(
    rows.map(hit),
    rows.map((row) => groups.number[row]),
    groups.quantiles,
  );
}

// What stands where nothing is trained, or never can be; "" elsewhere.
export function untrained() {
  const { what, report } = state.overview;
  if (what) return what + ".";
  return report.models.length ? "" : "Nothing is trained yet: taftcache train STORE.";
}

// What stands where the store has no model to predict with; "" where it has one.
export function noModel() {
  const { model, report } = state.overview;
  if (model || untrained()) return untrained();
  return report.models.some(({ name }) => name.startsWith("models/"))
    ? "No composed model can be read."
    : "No composed model yet: taftcache compose STORE.";
}

// Whether a stage of the background work has ended.
export const ready = (stage) => Boolean(state.stages[stage]?.ready);

// What stands where the result of a stage of the background work is not there.
export function waiting(stage) {
  const s = state.stages[stage];
  return quiet(
    s && s.ready ? (s.note ? "None: " + s.note : "None.") : source.live ? "Being computed …" : "Not in this report.",
  );
}
