// Accuracies with their 95 % intervals.
import { NORMAL } from "./by_groups.js";
import { chartNumbers } from "./chart_numbers.js";
import { chart, percentAxis } from "./charts.js";
import { h } from "./elements.js";
import { count, counted, percent } from "./numbers.js";
import { hue } from "./palette.js";

// Wilson's interval of a fraction, which `taftcache evaluate` gives too; judged is what byGroups says of its rows.
export function interval(right, rows, judged = null) {
  if (judged?.groups === 1) return [0, 1];
  const { rows: n, quantile } = judged ?? { rows, quantile: NORMAL },
    p = right / rows,
    z2 = quantile ** 2 / n;
  const half = quantile * Math.sqrt((p * (1 - p) + z2 / 4) / n);
  const [low, high] = [p + z2 / 2 - half, p + z2 / 2 + half].map((v) => v / (1 + z2));
  return [right ? low : 0, right < rows ? high : 1]; // which rounding misses
}

// What an interval is called, and its ends. groups: by how many it was judged, if by any; 0 where rows may share some that
// are not searched for here.
export function intervalText(low, high, groups) {
  if (groups === 1) return "no interval, for all are of one group";
  const by = groups ? ` by ${counted(groups, "group")}` : groups === 0 ? " by rows, not by groups (data.group)," : "";
  return `95 % interval${by} ${low} to ${high}`;
}

// Behind a number of held-out rows, where the logits of all of them do not fit in memory.
export const partOf = (rows, all) => (rows < all ? `, spread over all ${count(all)},` : "");

// A fraction right of held-out rows in words, with whose predictions they are.
export function accuracyLine({ right, rows, all, accuracy, judged }, whose) {
  const [low, high] = interval(right, rows, judged).map((v) => percent(v, 1));
  return [
    h("span", { class: "big", id: "accuracy" }, percent(accuracy)),
    ` of ${counted(rows, "held-out row")}${partOf(rows, all)} right (${intervalText(low, high, judged?.groups)}): ${whose}`,
  ];
}

// Groups [name, results] of results by name as dots with their intervals, side by side; the chart.
export function accuracyDots(place, label, names, groups) {
  const series = groups.map(([name, results], k) => dots(name, k, results, k - (groups.length - 1) / 2));
  return chart(place, label, {
    xAxis: { type: "category", data: names, name: "shard" },
    yAxis: percentAxis(0),
    tooltip: tooltip((k) => names[k]),
    series,
  });
}

// The accuracy as more and more shards are subtracted: a line through dots with their intervals.
export function accuracyCurve(place, label, results) {
  const color = hue(0),
    name = "composed";
  chart(place, label, {
    xAxis: { type: "value", name: "shards subtracted", minInterval: 1, max: results.length - 1 },
    yAxis: percentAxis(1),
    tooltip: tooltip((k) => `${k} subtracted`),
    series: [
      { name, type: "line", data: results.map(({ accuracy }, k) => [k, accuracy]), color, showSymbol: false },
      dots(name, 0, results, 0),
    ],
  });
}

// The numbers of either, by what stands along its axis: groups are [name, results].
export function accuracyNumbers(caption, title, names, groups) {
  const cell = (results) => (k) => {
    const { right, rows, accuracy, judged } = results[k],
      [low, high] = interval(right, rows, judged);
    return `${percent(accuracy)}, ${percent(low, 1)} to ${percent(high, 1)}`;
  };
  const columns = groups.map(([name, results]) => [name, cell(results), true]);
  return chartNumbers(caption, [[title, (k) => names[k]], ...columns], [...names.keys()]);
}

const SYMBOLS = ["circle", "diamond"]; // of the groups

const dots = (name, k, results, side) => ({
  name,
  type: "custom",
  color: hue(k),
  symbol: SYMBOLS[k],
  renderItem: (_, api) => dot(api, side, SYMBOLS[k]),
  encode: { x: 0, y: [1, 2, 3] },
  data: results.map(({ right, rows, accuracy, judged }, at) => [at, accuracy, ...interval(right, rows, judged)]),
});

// What stands at a place of the axis, titled by title(place).
function tooltip(title) {
  const line = ({ marker, seriesName, data: [, accuracy, low, high] }) =>
    `${marker} ${seriesName}: ${percent(accuracy)}, ${percent(low, 1)} to ${percent(high, 1)}`;
  const formatter = (found) => {
    const shown = found.filter(({ seriesType }) => seriesType === "custom");
    return shown.length ? [title(shown[0].dataIndex), ...shown.map(line)].join("\n") : "";
  };
  return { trigger: "axis", formatter };
}

const diamond = (x, y, r) => [
  [x, y - r],
  [x + r, y],
  [x, y + r],
  [x - r, y],
];

// One dot on its interval; side is where it stands among the groups.
function dot(api, side, symbol) {
  const room = api.size([1, 0])[0],
    by = side * Math.min(14, 0.4 * room),
    at = (dim) => api.coord([api.value(0), api.value(dim)]),
    [x, y] = at(1),
    r = Math.min(5, Math.max(1.5, 0.4 * room)),
    color = api.visual("color");
  return {
    type: "group",
    x: by,
    children: [
      { type: "line", shape: { x1: x, y1: at(2)[1], x2: x, y2: at(3)[1] }, style: { stroke: color, lineWidth: 2 } },
      symbol === "circle"
        ? { type: "circle", shape: { cx: x, cy: y, r }, style: { fill: color } }
        : { type: "polygon", shape: { points: diamond(x, y, 1.3 * r) }, style: { fill: color } },
    ],
  };
}
