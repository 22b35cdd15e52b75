// What the store holds.
import { accuracyLine } from "./accuracy.js";
import { lookAt, lookAtList } from "./address.js";
import { chart, css, namesAxis } from "./charts.js";
import { chartNumbers } from "./chart_numbers.js";
import { card, h, judgement, link, scrolled, section, table } from "./elements.js";
import { bytes, count, counted, noun, percent, short, upper } from "./numbers.js";
import { shade } from "./palette.js";
import { uncovered } from "./privacy.js";
import { judged, modelTitle, noModel, shardNumber, state, waiting } from "./state.js";

export function overviewView(main) {
  const r = state.overview.report,
    best = h("div", { id: "best" }),
    integrity = h("div", { id: "integrity" }),
    place = h("div", { class: "chart" });
  main.append(
    h("h1", {}, "Overview"),
    best,
    ...state.overview.outdated.map((note) => h("p", { class: "outdated" }, judgement(false, upper(note) + "."))),
    ...uncovered(r.models),
    cards(r),
    h("p", {}, origin(r)),
    h("p", {}, `Forgotten: ${state.overview.forgotten}.`),
    h("p", { class: "mono quiet" }, "root " + r.root_digest),
    h("h2", {}, "Integrity"),
    integrity,
    h("h2", {}, "Shards"),
    scrolled(table("Shards", SHARD_COLUMNS.filter(classed), r.shards)),
    ...(r.classes.length ? [section("Rows per class and shard", place, rowsTable(r))] : []),
    ...activations(r),
  );
  if (r.classes.length) rowsChart(place, r);
  const refresh = () => {
    best.replaceChildren(accuracy(), ...leaks(r.held_out_rows));
    integrity.replaceChildren(h("p", {}, r.integrity.text), ...state.overview.damage.map(damaged));
  };
  refresh();
  return { refresh };
}

// Of the store's best model, once the held-out rows are scored.
function accuracy() {
  const { model } = state.overview,
    found = state.held && state.held.models[model];
  if (!found) return noModel() ? h("p", {}, noModel()) : waiting("held-out predictions");
  return h("p", {}, accuracyLine(judged(found), modelTitle(model)));
}

// Held-out rows that a model may have been trained on.
function leaks(rows) {
  const { leaked } = state.overview;
  if (!leaked) return [];
  const said = `${count(leaked)} of ${counted(rows, "held-out row")} ${noun(leaked, "holds", "hold")} the very bytes of a training row, so no accuracy here is of new rows alone: `;
  return [
    h(
      "p",
      { id: "leaks" },
      said,
      link("duplicates and leaks", () => lookAtList("duplicates")),
    ),
  ];
}

const damaged = (problem) => h("p", {}, judgement(false, "Damaged: " + problem));

// Of the columns of shards, those of a store with classes.
const classed = ([title]) => state.overview.report.classes.length || !/class/.test(title);

const SHARD_COLUMNS = [
  ["shard", (x) => link(x.name, () => lookAt({ shard: shardNumber(x.name) }))],
  ["role", (x) => x.role],
  ["rows", (x) => count(x.rows), true],
  ["classes", (x) => x.classes, true],
  ["size", (x) => bytes(x.bytes), true, (x) => x.bytes],
  ["fewest / most of a class", (x) => `${x.fewest} / ${x.most}`, true],
  ["max |x|", (x) => short(x.max_abs), true],
  ["mean token ‖x‖", (x) => short(x.mean_token_norm), true],
  ["digest", (x) => h("span", { class: "mono" }, x.digest.slice(0, 16))],
];

const CHANNEL_COLUMNS = [
  ["channel", (x) => x.channel],
  ["root mean square", (x) => short(x.rms), true],
  ["times the median", (x) => short(x.ratio), true],
];

// A number over its noun.
const figure = (n, one, more) => card(noun(n, one, more), count(n));

const cards = (r) =>
  h(
    "div",
    { class: "cards" },
    figure(r.rows, "training row"),
    figure(r.held_out_rows, "held-out row"),
    r.classes.length ? figure(r.classes.length, "class", "classes") : null,
    figure(r.shards.filter((x) => x.role === "train").length, "training shard"),
    card("on disk", bytes(r.bytes)),
    card("as " + r.dtype, r.cut.shape.join(" × ")),
    figure(r.ledger_entries, "ledger entry", "ledger entries"),
  );

function origin(r) {
  const { model, weights } = r.identity.backbone,
    why = r.tangent.why ? ` (${r.tangent.why})` : "";
  if (model === "none") return `Vectors of ${weights}; tangent by ${r.tangent.path}.`;
  return (
    `${model} (${weights}), ${r.cut.tail}; cached: the ${r.cut.rows} of each sample; ` +
    `tangent by ${r.tangent.path || "nothing yet"}${why}.`
  );
}

// A class may be called like what every object has.
const rowsIn = (shard, name) => (Object.hasOwn(shard.rows_per_class, name) ? shard.rows_per_class[name] : 0);

const rowsTable = (r) =>
  chartNumbers(
    "Rows per class and shard",
    [["class", (name) => name], ...r.shards.map((x) => [x.name, (name) => rowsIn(x, name), true])],
    r.classes,
  );

function rowsChart(place, r) {
  const K = r.classes.length,
    S = r.shards.length;
  const turned = K > 12,
    left = turned ? 60 : 12;
  // the names of the part of the classes that is shown, zoomed in or not
  const names = (part) =>
    namesAxis(r.classes, turned ? 18 : 0, part * (place.clientWidth - left - 30), turned ? 60 : 0);
  const made = chart(place, `Rows per class in ${counted(S, "shard")}`, {
    grid: { left, right: 18, top: 14, bottom: 30, containLabel: true },
    xAxis: names(1),
    yAxis: { type: "value", minInterval: 1 },
    ...(K > 40 ? { dataZoom: [{ type: "inside" }] } : {}),
    series: r.shards.map((x, k) => ({
      name: x.name,
      type: "bar",
      stack: "all",
      color: shade(k, S),
      // where one ends and the next begins, whatever their colours
      itemStyle: { borderColor: css("--back"), borderWidth: K > 40 || S > 10 ? 0 : 1 },
      data: r.classes.map((name) => rowsIn(x, name)),
    })),
  });
  made.on("click", ({ seriesIndex, dataIndex }) =>
    lookAt({ class: dataIndex, shard: shardNumber(r.shards[seriesIndex].name) }),
  );
  made.on("datazoom", () => {
    const [{ start, end }] = made.getOption().dataZoom;
    made.setOption({ xAxis: names(100 / Math.max(end - start, 1)) });
  });
}

function activations(r) {
  if (!r.activations)
    return [h("h2", {}, "Activations"), h("p", {}, "None: a file that they were taken from is damaged.")];
  const { gathered, sampled: s } = r.activations,
    q = s.norm_quantiles;
  const all =
    `Of every value, gathered at extraction: max |x| ${short(gathered.max_abs)}, so values could be ` +
    `${short(gathered.headroom)} times larger before ${r.dtype} overflows; mean token ‖x‖ ` +
    `${short(gathered.mean_token_norm)}. NaN, infinities and overflow are refused at extraction.`;
  const some =
    `From a sample of ${count(s.rows)} of ${counted(s.of, "sample")}: norms ${short(q["0"])} to ${short(q["100"])}, ` +
    `the middle one ${short(q["50"])}; ${counted(s.outlier_channels, "outlier channel")}; ${percent(s.zeros)} zeros, ` +
    `${percent(s.subnormal)} too small for full precision, ${s.not_finite} not finite.`;
  return [
    h("h2", {}, "Activations"),
    h("p", {}, all),
    h("p", {}, some),
    scrolled(table("Largest channels", CHANNEL_COLUMNS, s.largest_channels)),
  ];
}
