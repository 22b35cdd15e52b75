// What the page knows, and what the person looking at it has chosen.
const state = {
  overview: null,
  ids: [],
  label: null,
  shard: null,
  columns: {},
  held: null,
  selected: null,
  lasso: null,
  colour: "class",
  space: "pca",
  filters: { class: "", shard: "", only: "", text: "" },
  out: new Set(),
  model: "models/mean",
  stages: {},
};
const UNKNOWN = -1;
const className = (k) => state.overview.report.classes[k] ?? "–";
const shardName = (k) => state.overview.shards[k].name;
const isHeldOut = (row) => state.overview.shards[state.shard[row]].role === "held-out";

async function loadRows() {
  const found = await source.get("ids");
  state.ids = found.ids;
  state.label = unpack(found.label);
  state.shard = unpack(found.shard);
}
async function loadColumns() {
  const found = await source.get("columns");
  for (const [name, packed] of Object.entries(found.columns)) state.columns[name] = unpack(packed);
}
async function loadHeldOut() {
  const found = await source.get("held-out");
  if (!found) return;
  const models = {};
  for (const [name, packed] of Object.entries(found.models)) models[name] = unpack(packed);
  state.held = { of: found.of, labels: unpack(found.labels), models, components: found.components };
}

// Rows that pass the filters: class, shard, right or wrong, text of the id.
function passing() {
  const { class: k, shard, only, text } = state.filters,
    rows = [];
  const mean = state.columns.mean,
    wanted = text.toLowerCase();
  for (let row = 0; row < state.ids.length; row++) {
    if (k !== "" && state.label[row] !== +k) continue;
    if (shard !== "" && state.shard[row] !== +shard) continue;
    if (only && (!mean || mean[row] === UNKNOWN || (mean[row] === state.label[row]) !== (only === "right"))) continue;
    if (wanted && !state.ids[row].toLowerCase().includes(wanted)) continue;
    rows.push(row);
  }
  return rows;
}
function inside(polygon, x, y) {
  let hit = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i],
      [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) hit = !hit;
  }
  return hit;
}
function places() {
  const own = state.space === "neighbours" && state.columns.nx;
  return own ? [state.columns.nx, state.columns.ny] : [state.columns.x, state.columns.y];
}
function chosen(rows) {
  if (!state.lasso) return rows;
  const [x, y] = places();
  return rows.filter((row) => inside(state.lasso, x[row], y[row]));
}

// Confusion and accuracies of predictions on the held-out rows.
function judged(predictions) {
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
  return { right, rows: labels.length, accuracy: right / labels.length, counts, of };
}

const title = (name) =>
  ({ base: "base model", "models/mean": "composed", "models/head": "head only", "models/exact": "exact, all shards" })[
    name
  ] || name.replace("components/", "shard ");

function waiting(stage) {
  const s = state.stages[stage];
  return h(
    "p",
    { class: "quiet" },
    s && s.ready ? (s.note ? "None: " + s.note : "None.") : source.live ? "Being computed …" : "Not in this report.",
  );
}
