// The map itself: a scatter of the rows that pass, moved by mouse and keyboard.
import { chart, css } from "../charts.js";
import { counted } from "../numbers.js";
import { className, state } from "../state.js";
import { legend } from "../legend.js";
import { groups } from "./colours.js";
import { moveByKeys } from "./keys.js";
import { passing, places } from "./rows.js";

const MOST_RINGS = 2000; // more would hide the map
const hidden = { show: false };
const BARE = { type: "value", scale: true, axisLine: hidden, axisTick: hidden, axisLabel: hidden, splitLine: hidden };

// In node, which must be in the document; toggled() is called when the legend hides or shows a group. Returns {made:
// the chart, draw: draws, mark(rows): rings those that a search has found, seen: the rows that are drawn and not hidden, rowAt: of an event}.
export function mapChart(node, toggled) {
  let shown = [],
    drawn = [],
    marked = 0;
  const made = chart(node, "", blank());
  node.setAttribute("role", "application"); // a screen reader keeps the keys of a picture to itself
  moveByKeys(made, node);
  const key = legend(made, node);
  made.on("legendselectchanged", ({ selected }) => {
    // the library remembers names of other colours too
    state.hidden = new Set(shown.map(([name]) => name).filter((name) => !selected[name]));
    toggled();
  });

  function rowAt(event) {
    if (!/^g\d+$/.test(event.seriesId || "")) return null;
    return shown[+event.seriesId.slice(1)][2][event.dataIndex];
  }
  function tooltip(event) {
    const row = rowAt(event);
    return row === null ? "" : state.ids[row] + "\n" + className(state.label[row]);
  }
  function draw() {
    const [x, y] = places();
    drawn = x ? passing().filter((row) => !Number.isNaN(x[row])) : [];
    shown = groups(drawn);
    const size = drawn.length > 30000 ? 2 : drawn.length > 5000 ? 3 : drawn.length > 1000 ? 6 : 8;
    const series = shown.map(([name, colour, part, symbol], k) => ({
      ...scatter("g" + k, name, colour, size, points(part, x, y)),
      symbol,
    }));
    if (state.selected !== null && x && !Number.isNaN(x[state.selected]))
      series.push(ring(x[state.selected], y[state.selected]));
    made.setOption({ tooltip: { formatter: tooltip }, legend: selection(shown), series }, { replaceMerge: ["series"] });
    key.fill(
      shown.map(([name, colour, , symbol]) => [name, colour, symbol, null]),
      state.hidden,
    );
    marked = 0;
    if (!state.lasso) made.dispatchAction({ type: "brush", areas: [] });
    const label = `Map of ${counted(drawn.length, "sample")}, coloured by ${state.colour}; the table below lists them.`;
    node.setAttribute("aria-label", label);
    node.dataset.points = drawn.length;
  }
  // Rings round the rows that a search has found; none without one.
  function mark(rows) {
    const wanted = state.filters.text && rows.length <= MOST_RINGS ? rows : [];
    if (!wanted.length && !marked) return;
    marked = wanted.length;
    const [x, y] = places();
    made.setOption({ series: [rings((x ? wanted : []).map((row) => [x[row], y[row]]))] });
  }
  function seen() {
    if (!state.hidden.size) return drawn;
    const gone = new Set(shown.filter(([name]) => state.hidden.has(name)).flatMap(([, , part]) => part));
    return drawn.filter((row) => !gone.has(row));
  }
  return { made, draw, mark, seen, rowAt };
}

const selection = (shown) => ({
  data: shown.map(([name]) => name),
  selected: Object.fromEntries(shown.map(([name]) => [name, !state.hidden.has(name)])),
});

const blank = () => ({
  grid: { left: 8, right: 8, top: 10, bottom: 8, containLabel: true },
  xAxis: BARE,
  yAxis: BARE,
  dataZoom: [
    { type: "inside", xAxisIndex: 0, filterMode: "none" },
    { type: "inside", yAxisIndex: 0, filterMode: "none" },
  ],
  // xAxisIndex ties the lasso to the axes: it stays where it was drawn when the map moves.
  brush: {
    toolbox: [],
    xAxisIndex: 0,
    yAxisIndex: 0,
    seriesIndex: [],
    brushMode: "single",
    brushStyle: { borderWidth: 2, color: "rgba(90,150,230,.14)", borderColor: css("--accent") },
  },
  series: [],
});

function points(rows, x, y) {
  const data = new Float32Array(2 * rows.length);
  rows.forEach((row, i) => {
    data[2 * i] = x[row];
    data[2 * i + 1] = y[row];
  });
  return data;
}

const scatter = (id, name, color, symbolSize, data) => ({
  id,
  name,
  type: "scatter",
  data,
  dimensions: ["x", "y"],
  large: true,
  largeThreshold: 500,
  progressive: 0,
  symbolSize,
  itemStyle: { color, opacity: 1 }, // less would leave less of a contrast
});

const rings = (data) => ({
  id: "found",
  name: "found",
  type: "scatter",
  symbolSize: 12,
  z: 4,
  silent: true,
  itemStyle: { color: "transparent", borderColor: css("--text"), borderWidth: 1.5 },
  data,
});

// Round the sample that is chosen.
const ring = (x, y) => ({
  id: "selected",
  name: "chosen sample",
  type: "scatter",
  symbolSize: 18,
  z: 5,
  silent: true,
  itemStyle: { color: "transparent", borderColor: css("--text"), borderWidth: 3 },
  data: [[x, y]],
});
