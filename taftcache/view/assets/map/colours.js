// The rows of the map in groups of one colour.
import { css } from "../charts.js";
import { short } from "../numbers.js";
import { hue, ramp, shade, symbol } from "../palette.js";
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

const SYMBOLS_SEEN = 5000; // points above which they are too small to tell one symbol from another

// By the colour that is chosen, each group a series: [name, colour, rows, symbol].
export function groups(rows) {
  const { classes, margin } = judge(),
    columns = { ...state.columns, class: state.label, shard: state.shard, model: classes, error: classes, margin },
    known = columns[state.colour];
  if (!known) return [["not known", css("--quiet"), rows, "circle"]];
  if (state.colour === "error") return byRight(rows, known);
  return ["class", "shard", "model"].includes(state.colour) ? byName(rows, known) : bySize(rows, known);
}

function byName(rows, column) {
  const shards = state.colour === "shard",
    name = shards ? shardName : className,
    total = (shards ? state.overview.shards : state.overview.report.classes).length,
    drawn = rows.length > SYMBOLS_SEEN ? (k) => [shade(k, total), "rect"] : (k) => [hue(k), symbol(k)];
  return split(rows, (row) => column[row]).map(([k, part]) => {
    if (k === UNKNOWN) return ["unknown", css("--quiet"), part, "circle"];
    const [color, sign] = drawn(k);
    return [name(k), color, part, sign];
  });
}

function byRight(rows, found) {
  const kinds = [
    "unknown",
    "right",
    "wrong",
    "trained on, its label",
    "trained on, another label",
    "perhaps trained on, its label",
    "perhaps trained on, another label",
  ];
  const { name } = judge(),
    seen = state.overview.shards.map((_, k) => ["", "yes", "perhaps"].indexOf(trainedOn(k, name)));
  const kind = (row) =>
    found[row] === UNKNOWN ? 0 : (found[row] === state.label[row] ? 1 : 2) + 2 * seen[state.shard[row]];
  return split(rows, kind).map(([k, part]) =>
    k ? [kinds[k], hue(k - 1), part, symbol(k - 1)] : [kinds[0], css("--quiet"), part, "circle"],
  );
}

// In as many groups of equal size as the ramp has colours.
function bySize(rows, column) {
  const sorted = Float32Array.from(rows, (row) => column[row])
    .filter((v) => !Number.isNaN(v))
    .sort();
  const shades = ramp(),
    edges = shades.map((_, k) => sorted[Math.floor((k * (sorted.length - 1)) / shades.length)]);
  const bin = (v) => {
    let k = 0;
    while (k + 1 < edges.length && v >= edges[k + 1]) k++;
    return k;
  };
  return split(rows, (row) => (Number.isNaN(column[row]) ? UNKNOWN : bin(column[row]))).map(([k, part]) =>
    k === UNKNOWN ? ["unknown", css("--quiet"), part, "circle"] : ["≥ " + short(edges[k]), shades[k], part, "circle"],
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
