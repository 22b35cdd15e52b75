// Certificates, convergence, and the regularisation path of the head.
import { chartNumbers } from "./chart_numbers.js";
import { chart, css, percentAxis } from "./charts.js";
import { h, quiet, scrolled, section, table } from "./elements.js";
import { atMost, count, counted, percent, short } from "./numbers.js";
import { dash, hue, symbol } from "./palette.js";
import { uncovered } from "./privacy.js";
import { modelTitle, state, untrained, waiting } from "./state.js";

const PROOF =
  "Each is a float64 gradient recomputed from the rows. F is λ-strongly convex, so ‖Δw − Δw*‖ ≤ ‖∇F‖/λ and F − F* ≤ ‖∇F‖²/2λ.";
const ONE_STEP = "No curves: every solve here took one step (the exact inverse, or the closed form).";
const NO_SOLVE = "No curves: nothing here was solved (private training takes steps, and tells nothing of them).";

export function trainingView(main) {
  const models = state.overview.report.models;
  main.append(h("h1", {}, "Training"));
  if (untrained()) {
    main.append(h("p", {}, untrained()));
    return;
  }
  const solves = models.filter((m) => m.certificate && m.convergence && m.convergence.length > 1),
    points = state.overview.path,
    convergence = h("div", { class: "chart" }),
    path = h("div", { class: "chart" });
  main.append(
    h("h2", {}, "Certificates"),
    h("p", {}, PROOF),
    scrolled(table("Certificates", COLUMNS, models)),
    ...uncovered(models),
    h(
      "div",
      { class: "columns" },
      section(
        "Convergence: residual of the solver by pass",
        ...(solves.length
          ? [convergence, residuals(solves)]
          : [quiet(models.some((model) => model.certificate) ? ONE_STEP : NO_SOLVE)]),
      ),
      section(
        "Regularisation path of the head",
        ...(points.length ? [marks(), path, accuracies(points)] : [waiting("head path")]),
      ),
    ),
  );
  if (solves.length) convergenceChart(convergence, solves);
  if (points.length) pathChart(path, points);
}

const proved = (of) => (m) => (m.certificate ? atMost(m.certificate[of], 2).toExponential(1) : "–");

// What a sum is, from its coefficients by component, or from the number of its components if each class has its own.
function summed(parts) {
  if (typeof parts === "number") return `a sum of ${counted(parts, "component")}, each class weighed by its rows`;
  const each = Object.values(parts),
    what = new Set(each).size > 1 ? "a weighted sum" : "the mean";
  return `${what} of ${counted(each.length, "component")}`;
}

function ending(m) {
  if (m.promise) return m.promise;
  if (m.coefficients) return summed(m.coefficients);
  if (m.imported) return "imported, unproven";
  return h("span", { class: m.converged ? "good" : "bad" }, m.converged ? "converged" : m.status);
}

const COLUMNS = [
  ["model", (m) => modelTitle(m.name)],
  ["rows", (m) => (m.rows ? count(m.rows) : "–"), true],
  ["‖Δw‖", (m) => short(m.norm), true],
  ["‖∇F‖ / start", proved("relative_gradient"), true],
  ["‖Δw−Δw*‖ ≤", proved("distance_bound"), true],
  ["F − F* ≤", proved("gap_bound"), true],
  ["passes", (m) => (m.stats && m.stats.passes) || "–", true],
  ["how it ended", ending],
];

const powers = () => ({ color: css("--text"), formatter: (v) => v.toExponential(0) });

// A line of the table for each pass at which any of the solves was looked at.
function residuals(solves) {
  const by = solves.map((m) => new Map(m.convergence)),
    passes = [...new Set(by.flatMap((one) => [...one.keys()]))].sort((a, b) => a - b);
  const of = (m, k) => [modelTitle(m.name), (pass) => (by[k].has(pass) ? power(by[k].get(pass)) : "–"), true];
  return chartNumbers("Residual by pass", [["passes", (pass) => pass, true], ...solves.map(of)], passes);
}

const rate = (v) => (v === null ? "–" : percent(v));
const accuracies = (points) =>
  chartNumbers(
    "Accuracy of the head alone by λ",
    [
      ["λ", (x) => power(x.ridge), true],
      ["held out", (x) => rate(x.held_out), true],
      ["training rows", (x) => rate(x.train), true],
    ],
    points,
  );

function convergenceChart(place, solves) {
  chart(place, `Residual by pass of ${counted(solves.length, "solve")}`, {
    xAxis: { type: "value", name: "passes over the rows", minInterval: 1 },
    yAxis: { type: "log", axisLabel: powers() },
    tooltip: { trigger: "axis" },
    series: solves.map((m, k) => ({
      name: modelTitle(m.name),
      type: "line",
      data: m.convergence,
      color: hue(k),
      symbol: symbol(k),
      symbolSize: 7,
      lineStyle: { type: dash(k) },
    })),
  });
}

// Each λ of the store's heads, or the one that it was told, with whose it is: [λ, whose].
function ridges() {
  const { head_ridges: found, objective } = state.overview,
    by = new Map();
  for (const [name, ridge] of Object.entries(found)) by.set(ridge, [...(by.get(ridge) ?? []), name]);
  const told = [...by].map(([ridge, names]) => [
    ridge,
    names.length > 1 ? `${count(names.length)} components` : modelTitle(names[0]),
  ]);
  if (!told.length && typeof objective.ridge === "number") told.push([objective.ridge, "recipe"]);
  return told.sort(([a], [b]) => a - b);
}

// 1e-5, 3.2e-6
const power = (v) => v.toExponential(1).replace(".0e", "e");

function marks() {
  const said = ridges().map(([ridge, whose]) => `λ = ${power(ridge)}, that of the ${whose}`);
  return said.length ? quiet(`Marked: ${said.join("; ")}.`, { id: "ridges" }) : "";
}

function pathChart(place, points) {
  const rates = points.flatMap((x) => [x.train, x.held_out]).filter((v) => v !== null);
  const line = (key, name, k) => ({
    name,
    type: "line",
    symbol: symbol(k),
    symbolSize: 6,
    color: hue(k),
    data: points.filter((x) => x[key] !== null).map((x) => [x.ridge, x[key]]),
  });
  const mark = ([ridge], k) => ({
    name: `λ = ${power(ridge)}`,
    type: "line",
    showSymbol: false,
    color: css("--text"),
    lineStyle: { type: ["dashed", "dotted", "solid"][k % 3] },
    data: [Math.min(...rates), Math.max(...rates)].map((v) => [ridge, v]),
  });
  chart(place, "Accuracy of the head alone by λ, on training and held-out rows", {
    grid: { left: 12, right: 24, top: 14, bottom: 30, containLabel: true },
    xAxis: {
      type: "log",
      name: "λ",
      min: points[0].ridge,
      max: points[points.length - 1].ridge,
      interval: 2, // powers of ten
      axisLabel: powers(),
    },
    yAxis: percentAxis(0),
    tooltip: { trigger: "axis", valueFormatter: (v) => percent(v) },
    series: [line("held_out", "held out", 0), line("train", "training rows", 1), ...ridges().map(mark)],
  });
}
