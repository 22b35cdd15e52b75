// Confusion and accuracy of each class, by model.
import { accuracyLine } from "./accuracy.js";
import { keep, lookAt } from "./address.js";
import { chart, css, dropCharts, namesAxis, widest } from "./charts.js";
import { choice, h, link, quiet, scrolled, section, table } from "./elements.js";
import { count, counted, noun, percent } from "./numbers.js";
import { className, heldOutShard, judged, modelTitle, noModel, state, waiting } from "./state.js";

export function classesView(main) {
  if (!state.held) {
    main.append(h("h1", {}, "Classes"), waiting("held-out predictions"));
    return;
  }
  const names = Object.keys(state.held.models),
    place = h("div", {});
  if (!names.includes(state.model))
    state.model = names.includes(state.overview.model)
      ? state.overview.model
      : (names.find((name) => name !== "base") ?? "base");
  const results = Object.fromEntries(names.map((name) => [name, judged(state.held.models[name])]));
  const options = names.map((name) => [name, modelTitle(name)]);
  const model = choice("model", "Model", options, state.model, (name) => {
    state.model = name;
    keep();
    draw();
  });
  const none = noModel() ? h("p", {}, noModel()) : "";
  main.append(h("h1", {}, "Classes"), none, h("div", { class: "tools" }, model), place);

  function draw() {
    dropCharts();
    const matrix = h("div", { class: "chart" });
    place.replaceChildren(...parts(results, matrix));
    confusionChart(matrix, results[state.model]);
  }
  draw();
}

// What is said of the model that is chosen; matrix is where the chart goes.
function parts(results, matrix) {
  const result = results[state.model],
    pairs = confusions(result);
  return [
    h("p", {}, accuracyLine(result, modelTitle(state.model))),
    quiet("A cell, a pair or a class shows its samples on the map."),
    h(
      "div",
      { class: "columns" },
      section("Confusion", matrix),
      section(
        "Most frequent confusions",
        pairs.length ? scrolled(table("Confusions", PAIR_COLUMNS, pairs.slice(0, 40)), true) : h("p", {}, "None."),
      ),
    ),
    h("h2", {}, "Accuracy of each class"),
    scrolled(accuracyTable(results), true),
  ];
}

// The held-out rows that a cell of the confusion counts, on the map.
function lookAtCell(label, taken) {
  const by = state.model === state.overview.model ? "" : state.model;
  lookAt({ class: label, taken, by, shard: heldOutShard() });
}

const PAIR_COLUMNS = [
  ["class", (x) => link(className(x[0]), () => lookAtCell(x[0], x[1]))],
  ["taken for", (x) => link(className(x[1]), () => lookAtCell(x[0], x[1]))],
  ["rows", (x) => x[2], true],
];

// [class, class it was taken for, rows], most rows first.
function confusions({ counts }) {
  const K = state.overview.report.classes.length,
    pairs = [];
  for (let y = 0; y < K; y++)
    for (let p = 0; p < K; p++) if (y !== p && counts[y * K + p]) pairs.push([y, p, counts[y * K + p]]);
  return pairs.sort((a, b) => b[2] - a[2]);
}

// Every model but single components, and the one that is chosen; the worst classes first, those without a held-out row
// last.
function accuracyTable(results) {
  const { classes, rows_per_class: rows } = state.overview.report,
    K = classes.length,
    result = results[state.model];
  const shown = Object.keys(results).filter((name) => !name.startsWith("components/") || name === state.model);
  const rate = ({ counts, of }, k, empty) => counts[k * K + k] / (of[k] || empty);
  const unknown = (k) => !result.of[k];
  const order = [...Array(K).keys()].sort((a, b) => unknown(a) - unknown(b) || rate(result, a, 1) - rate(result, b, 1));
  const columns = [
    ["class", (k) => link(classes[k], () => lookAt({ class: k }))],
    ["training rows", (k) => count(rows[classes[k]]), true],
    ["held out", (k) => result.of[k], true],
    ...shown.map((name) => [modelTitle(name), (k) => percent(rate(results[name], k, NaN)), true]),
  ];
  return table("Accuracy of each class by model", columns, order);
}

// The cells of the confusion that count any row: [predicted, class, root of the part of the class's rows], so that one row
// of many is seen.
function confusionCells({ counts, of }) {
  const K = of.length,
    cells = [];
  for (let y = 0; y < K; y++)
    for (let p = 0; p < K; p++) if (counts[y * K + p]) cells.push([p, y, Math.sqrt(counts[y * K + p] / of[y])]);
  return cells;
}

// What is right is of one colour, and what is wrong of another; the least of either is no zero.
const shades = (seriesIndex, least, most) => ({
  show: false,
  seriesIndex,
  min: 0,
  max: 1,
  inRange: { color: [css(least), css(most)] },
});

function confusionChart(node, result) {
  const classes = state.overview.report.classes,
    K = classes.length,
    cells = confusionCells(result),
    wrong = cells.filter(([p, y]) => p !== y),
    pairs = wrong.length;
  const wide = widest(classes),
    across = node.clientWidth - wide - 60,
    turned = K * (wide + 16) > across, // to have the name of every class that there is room for
    below = turned ? Math.ceil(0.87 * wide) + 14 : 26;
  const high = Math.min(560, Math.max(320, 60 + 26 * Math.min(K, 20))) + below,
    bare = { splitLine: { show: false } };
  node.style.height = high + "px";
  const label =
    `Confusion of ${modelTitle(state.model)}: ${counted(pairs, "pair")} of classes ${noun(pairs, "is", "are")} taken ` +
    "for one another; " +
    "the table beside lists them";
  const series = (data) => ({
    type: "heatmap",
    data,
    progressive: 0,
    itemStyle: { borderColor: css("--back"), borderWidth: K <= 40 ? 1 : 0 },
    label: { show: K <= 15, color: css("--text"), formatter: ({ data: [p, y] }) => result.counts[y * K + p] },
  });
  const tooltip = ({ data: [p, y] }) => {
    const rows = result.counts[y * K + p];
    return `${className(y)} taken for ${className(p)}: ${counted(rows, "row")}, ${percent(rows / result.of[y])} of it`;
  };
  const made = chart(node, label, {
    grid: { left: 8, right: 8 + (turned ? 0 : wide / 2), top: 30, bottom: 30, containLabel: true },
    xAxis: {
      ...namesAxis(classes, turned ? 18 : wide + 16, across, turned ? 60 : 0),
      ...bare,
      name: "predicted",
      nameGap: below,
    },
    yAxis: {
      ...namesAxis(classes, 16, high - below - 60),
      ...bare,
      inverse: true,
      name: "class",
      nameLocation: "start",
    },
    visualMap: [shades(0, "--fill-least", "--fill"), shades(1, "--fault-least", "--fault")],
    tooltip: { formatter: tooltip },
    series: [series(cells.filter(([p, y]) => p === y)), series(wrong)],
  });
  made.on("click", ({ data: [p, y] }) => lookAtCell(y, p));
}
