// The rows of the map in groups of one colour.
import { classColour, css, PALETTE, RAMP } from "../charts.js";
import { short } from "../numbers.js";
import { className, judge, ready, shardName, state, trainedOn, UNKNOWN } from "../state.js";

export const colours = () =>
  ALL.filter(([name]) =>
    state.overview.what
      ? ["shard", "norm"].includes(name)
      : name !== "moved" || state.columns.moved || !ready("influence"),
  );

const ALL = [
  ["class", "class"],
  ["shard", "shard"],
  ["model", "prediction"],
  ["error", "right or wrong"],
  ["margin", "margin"],
  ["moved", "influence"],
  ["norm", "norm of the vector"],
];

// By the colour that is chosen, each group a series: [name, colour, rows].
export function groups(rows) {
  const { classes, margin } = judge(),
    columns = { ...state.columns, class: state.label, shard: state.shard, model: classes, error: classes, margin },
    known = columns[state.colour];
  if (!known) return [["not known", css("--quiet"), rows]];
  if (state.colour === "error") return byRight(rows, known);
  return ["class", "shard", "model"].includes(state.colour) ? byName(rows, known) : bySize(rows, known);
}

function byName(rows, column) {
  const shards = state.colour === "shard",
    name = shards ? shardName : className,
    total = (shards ? state.overview.shards : state.overview.report.classes).length;
  return split(rows, (row) => column[row]).map(([k, part]) =>
    k === UNKNOWN ? ["unknown", css("--quiet"), part] : [name(k), classColour(k, total), part],
  );
}

function byRight(rows, found) {
  const kinds = [
    ["unknown", css("--quiet")],
    ["right", PALETTE[0]],
    ["wrong", PALETTE[3]],
    ["trained on, its label", PALETTE[4]],
    ["trained on, another label", PALETTE[7]],
    ["perhaps trained on, its label", PALETTE[5]],
    ["perhaps trained on, another label", PALETTE[1]],
  ];
  const { name } = judge(),
    seen = state.overview.shards.map((_, k) => ["", "yes", "perhaps"].indexOf(trainedOn(k, name)));
  const kind = (row) =>
    found[row] === UNKNOWN ? 0 : (found[row] === state.label[row] ? 1 : 2) + 2 * seen[state.shard[row]];
  return split(rows, kind).map(([k, part]) => [...kinds[k], part]);
}

// In as many groups of equal size as the ramp has colours.
function bySize(rows, column) {
  const sorted = Float32Array.from(rows, (row) => column[row])
    .filter((v) => !Number.isNaN(v))
    .sort();
  const edges = RAMP.map((_, k) => sorted[Math.floor((k * (sorted.length - 1)) / RAMP.length)]);
  const bin = (v) => {
    let k = 0;
    while (k + 1 < edges.length && v >= edges[k + 1]) k++;
    return k;
  };
  return split(rows, (row) => (Number.isNaN(column[row]) ? UNKNOWN : bin(column[row]))).map(([k, part]) =>
    k === UNKNOWN ? ["unknown", css("--quiet"), part] : ["≥ " + short(edges[k]), RAMP[k], part],
  );
}

// [key, its rows], by rising key.
function split(rows, key) {
  const parts = new Map();
  for (const row of rows) {
    const k = key(row);
    if (!parts.has(k)) parts.set(k, []);
    parts.get(k).push(row);
  }
  return [...parts].sort((a, b) => a[0] - b[0]);
}
