// Charts.
import { entriesOf, legend } from "./legend.js";
import { PAPER } from "./paper.js";

// The value of one of the style's variables, which differ between light and dark.
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const charts = new Set();

// A chart in node, which must be in the document, below its legend; label describes it to who cannot see it.
export function chart(node, label, option) {
  const made = echarts.init(node);
  charts.add(made);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", label);
  const text = css("--text"),
    line = css("--line");
  const axis = {
    axisLine: { lineStyle: { color: line } },
    axisLabel: { color: text },
    nameTextStyle: { color: text },
    splitLine: { lineStyle: { color: line } },
  };
  made.setOption({
    animation: false,
    textStyle: { color: text, fontFamily: "system-ui, sans-serif" },
    grid: { left: 12, right: 18, top: 14, bottom: 30, containLabel: true },
    ...option,
    legend: { show: false, ...option.legend }, // it knows what is hidden
    tooltip: {
      backgroundColor: css("--panel"),
      borderColor: line,
      textStyle: { color: text },
      ...option.tooltip,
      renderMode: "richText", // the other mode reads ids and names of classes as HTML
      confine: true,
    },
    xAxis: option.xAxis && { ...axis, nameLocation: "middle", nameGap: 26, ...option.xAxis },
    yAxis: option.yAxis && { ...axis, ...option.yAxis },
  });
  const entries = entriesOf(option.series);
  if (entries.length) legend(made, node).fill(entries);
  return made;
}

const LONGEST_NAME = 110; // px; a longer one ends in dots

// About how many px the longest of some names takes.
export const widest = (names) => Math.min(LONGEST_NAME, 7 * Math.max(...names.map((name) => name.length)));

// An axis of names in `room` px, each of which takes `each`: as many of them as there is room for.
export const namesAxis = (names, each, room, rotate = 0) => ({
  type: "category",
  data: names,
  axisLabel: {
    color: css("--text"),
    rotate,
    width: LONGEST_NAME,
    overflow: "truncate",
    interval: Math.max(1, Math.ceil((names.length * each) / Math.max(room, 1))) - 1,
    hideOverlap: true,
  },
});

// An axis of accuracies, which are fractions; no two of its ticks have the same text. Around a line that is level it
// reaches to the next multiples of 5 %, for ECharts would put it into the middle of an axis that goes beyond 100 %.
export const percentAxis = (digits) => ({
  type: "value",
  scale: true,
  min: ({ min, max }) => (min === max ? Math.max(0, Math.ceil(20 * min - 1) / 20) : null),
  max: ({ min, max }) => (min === max ? Math.min(1, Math.floor(20 * max + 1) / 20) : null),
  minInterval: 10 ** (-2 - digits),
  axisLabel: { formatter: (v) => (v > 1 + 1e-9 ? "" : (100 * v).toFixed(digits) + " %"), color: css("--text") },
});

export function dropCharts() {
  for (const made of charts) made.dispose();
  charts.clear();
}

addEventListener("resize", () => charts.forEach((made) => made.resize()));

// Paper is narrower than most windows, and is drawn on before the next frame.
addEventListener("beforeprint", () => {
  for (const made of charts) {
    made.resize({ width: Math.min(PAPER, made.getWidth()) });
    made.getZr().flush();
  }
});
addEventListener("afterprint", () => charts.forEach((made) => made.resize({ width: "auto" })));
