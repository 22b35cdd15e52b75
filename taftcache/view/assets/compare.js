// Two models sample by sample: what changed its label, and by how much.
import { intervalText } from "./accuracy.js";
import { keep, lookAtSample } from "./address.js";
import { keepButton } from "./picked.js";
import { chart, css, dropCharts } from "./charts.js";
import { choice, h, link, perhapsNote, quiet, scrolled, table, verdict } from "./elements.js";
import { tell, tellProgress } from "./live.js";
import { count, counted, noun, percent, short } from "./numbers.js";
import { hue, symbol } from "./palette.js";
import { ask, askUntilDone, source, unpack } from "./source.js";
import { modelTitle, noModel, state } from "./state.js";

const LISTED = 300;
const ROWS = [
  ["held-out", "held out"],
  ["training", "training"],
  ["all", "all"],
];
const SHOW = [
  ["changed", "another label"],
  ["right", "became right"],
  ["wrong", "became wrong"],
  ["same", "the same label"],
  ["all", "all"],
];

export function compareView(main) {
  const controls = h("div", { class: "tools" }),
    place = h("div", { id: "compared" });
  main.append(h("h1", {}, "Two models compared"), controls, place);
  if (!source.live) {
    place.append(quiet("Not in this report; taftcache view compares."));
    return;
  }
  place.append(quiet("Being read …"));
  ask("comparable").then(
    (offer) => place.isConnected && begin(offer, controls, place),
    (error) => place.replaceChildren(h("p", {}, error.message)),
  );
}

const fullName = (offer, name) => {
  const [side, model] = [name.slice(0, name.indexOf(":")), name.slice(name.indexOf(":") + 1)];
  return modelTitle(model) + (offer.sides.there ? (side === "here" ? ", this store" : ", second store") : "");
};

function begin(offer, controls, place) {
  const models = Object.entries(offer.sides).flatMap(([side, { models: own }]) => own.map((name) => `${side}:${name}`));
  if (models.length < 2) {
    place.replaceChildren(h("p", {}, noModel() || "There is one model alone, and none to compare it with."));
    return;
  }
  for (const key of ["before", "after"])
    if (!models.includes(state.pair[key])) state.pair[key] = models.includes(offer[key]) ? offer[key] : models[0];
  if (!Object.hasOwn(KINDS, state.pair.show)) state.pair.show = "changed";
  const options = models.map((name) => [name, fullName(offer, name)]);
  let answer = null;
  const select = (key, label, shown, act, id = key) =>
    choice(id, label, shown, state.pair[key], (value) => {
      state.pair[key] = value;
      act();
    });
  const which = h("span", {}),
    labels = h("span", {});
  controls.append(
    select("before", "Before", options, work),
    select("after", "After", options, work),
    which,
    select("show", "Show", SHOW, draw),
    labels,
  );
  async function work() {
    keep();
    const found = await compared(place);
    if (!found) return;
    answer = found;
    const there = ROWS.filter(([rows]) => answer.groups[rows]);
    if (!there.some(([rows]) => rows === state.pair.rows)) state.pair.rows = there[0][0];
    which.replaceChildren(select("rows", "Rows", there, draw));
    // classes that only the second store has stand behind this one's
    const classes = [["", "all"], ...answer.classes.map((name) => [name, name])];
    labels.replaceChildren(select("class", "Class", classes, draw, "label"));
    draw();
    tell(place.querySelector("#changes").textContent);
  }
  function draw() {
    keep();
    if (answer) show(place, offer, answer);
    if (answer) tell(place.querySelector("#listed").textContent);
  }
  work();
}

// The server's answer for the pair that is chosen, unpacked; null where it has none, or another pair was chosen meanwhile.
async function compared(place) {
  const { before, after } = state.pair,
    wanted = () => place.isConnected && before === state.pair.before && after === state.pair.after;
  const say = (answer) => {
    const done = answer.state === "working" ? `row ${count(answer.done)}` : "another comparison first";
    const text = `Being compared: ${done} …`;
    tellProgress(text);
    place.replaceChildren(quiet(text));
  };
  const found = await askUntilDone("compare", { before, after }, wanted, say);
  if (found?.error) {
    tell(found.error);
    place.replaceChildren(h("p", {}, found.error));
  }
  return found && !found.error ? unpack(found) : null;
}

// Whether a model was trained on a row, by the server's number.
const SAW = ["", "yes", "perhaps"];

const KINDS = {
  changed: (b, a) => b !== a,
  right: (b, a, y) => b !== y && a === y,
  wrong: (b, a, y) => b === y && a !== y,
  same: (b, a) => b === a,
  all: () => true,
};

// Of the rows compared, those to list.
function chosen(answer) {
  const { rows, show: kind, class: label } = state.pair,
    part = answer.in[rows],
    y = label === "" ? -1 : answer.classes.indexOf(label);
  const found = [];
  for (let k = 0; k < answer.rows.length; k++) {
    if (!part[k]) continue;
    if (y >= 0 && answer.label[k] !== y) continue;
    if (KINDS[kind](answer.before.class[k], answer.after.class[k], answer.label[k])) found.push(k);
  }
  return found;
}

function show(place, offer, answer) {
  dropCharts();
  const list = chosen(answer),
    figure = h("div", { class: "chart", id: "margins" });
  place.replaceChildren(
    ...ties(offer, answer),
    summary(answer.groups[state.pair.rows], answer.unsearched),
    h("p", { id: "listed" }, `${counted(list.length, "sample")} listed`),
    ...(list.length ? [figure] : []),
    scrolled(table("Samples compared", columns(answer), list, null, LISTED), true),
    perhapsNote(list.flatMap((k) => [SAW[answer.before.trained[k]], SAW[answer.after.trained[k]]])),
    h(
      "p",
      { class: "tools" },
      keepButton(() => list.map((k) => answer.rows[k])),
    ),
  );
  place.querySelector("#listed").dataset.count = list.length;
  if (list.length > LISTED) place.append(quiet(`${LISTED} are in the table; the headers sort all.`));
  if (list.length) marginsChart(figure, answer, list);
}

const damaged = (found) =>
  `The second store is damaged; its models that need these files are left out: ${found.join("; ")}.`;

// What the second store has to do with this one.
function ties(offer, answer) {
  if (!offer.sides.there) return [];
  const [here, there] = offer.rows;
  const text =
    `Second store: ${offer.sides.there.store}, root ${offer.sides.there.root.slice(0, 16)}. ${count(offer.shared)} ` +
    `${noun(offer.shared, "sample is", "samples are")} in both, matched by id; ${count(here - offer.shared)} only in ` +
    `this one, ${count(there - offer.shared)} only in the second.` +
    (answer.relabelled
      ? ` ${counted(answer.relabelled, "sample")} ${noun(answer.relabelled, "has", "have")} another class there.`
      : "") +
    (answer.held_out_once
      ? ` ${counted(answer.held_out_once, "sample")} ${noun(answer.held_out_once, "is", "are")} held out in one store ` +
        "and trained on in the other: they are among all rows alone."
      : "") +
    (answer.known
      ? ` ${counted(answer.known, "sample")} held out in both ${noun(answer.known, "is", "are")} of groups (data.group) ` +
        "that one store alone trained on: they are among all rows alone."
      : "");
  const damage = offer.damage.length ? [h("p", { id: "damage-there" }, damaged(offer.damage))] : [];
  return [h("p", {}, text), ...damage, ...(offer.receipt ? [h("p", { id: "receipt" }, offer.receipt)] : [])];
}

const signed = (x) => (x < 0 ? "−" : "+") + (100 * Math.abs(x)).toFixed(2);
const VERDICTS = {
  ahead: "the second is the more accurate",
  behind: "the first is the more accurate",
  "within noise": "within noise",
};

// Of a training row a model knows the label, perhaps by heart: only held-out rows tell which model is the better one.
function summary(found, unsearched) {
  const [low, high] = found.interval.map((v) => percent(v, 1)),
    [from, to] = found.gain_interval.map(signed),
    heldOut = state.pair.rows === "held-out",
    interval = heldOut ? `, ${intervalText(low, high, unsearched ? 0 : found.groups)}` : "",
    between = found.groups === 1 ? "" : `, ${from} to ${to}`,
    right = found.right.map(count);
  return h(
    "p",
    { id: "changes" },
    h("span", { class: "big" }, count(found.changed)),
    ` of ${counted(found.rows, "row")} ${noun(found.changed, "gets", "get")} another label ` +
      `(${percent(found.changed / found.rows)}${interval}). ` +
      (heldOut
        ? `Right: ${right[0]} before, ${right[1]} after; ${signed(found.gain)} points${between}: ${VERDICTS[found.verdict]}.`
        : `Labels fitted: ${right[0]} before, ${right[1]} after. A model may know the labels of training rows by heart: ` +
          "only held-out rows tell which one is the more accurate."),
  );
}

function columns(answer) {
  const { classes, label, before, after, rows } = answer;
  const said = (which) => (k) => verdict(SAW[which.trained[k]], which.class[k] === label[k], classes[which.class[k]]);
  const number = (title, of) => [title, (k) => short(of(k)), true, of];
  return [
    ["sample", (k) => link(state.ids[rows[k]], () => lookAtSample(rows[k])), false, (k) => state.ids[rows[k]]],
    ["class", (k) => classes[label[k]]],
    ["before", said(before), false, (k) => classes[before.class[k]]],
    ["after", said(after), false, (k) => classes[after.class[k]]],
    number("margin before", (k) => before.margin[k]),
    number("margin after", (k) => after.margin[k]),
    number("change", (k) => after.margin[k] - before.margin[k]),
  ];
}

const marginAxis = (name, min, max) => ({
  type: "value",
  name,
  min,
  max,
  nameLocation: "middle",
  axisLabel: { formatter: short, color: css("--text"), showMinLabel: false, showMaxLabel: false },
});

// Margins before and after: above the diagonal a sample gained.
function marginsChart(node, answer, list) {
  const { before, after, label } = answer,
    became = (k, which) => KINDS[which](before.class[k], after.class[k], label[k]);
  const groups = [
    ["became right", hue(0), list.filter((k) => became(k, "right"))],
    ["became wrong", hue(1), list.filter((k) => became(k, "wrong"))],
    ["neither", css("--quiet"), list.filter((k) => !became(k, "right") && !became(k, "wrong"))],
  ];
  const ends = list.flatMap((k) => [before.margin[k], after.margin[k]]).filter((v) => !Number.isNaN(v)),
    [low, high] = [ends.reduce((a, b) => Math.min(a, b), 0), ends.reduce((a, b) => Math.max(a, b), 0)];
  const made = chart(
    node,
    `Margins of ${counted(list.length, "sample")} before and after; the table below lists them`,
    {
      grid: { left: 34, right: 18, top: 14, bottom: 30, containLabel: true }, // the name of the axis on the left
      xAxis: marginAxis("margin before", low, high),
      yAxis: { ...marginAxis("margin after", low, high), nameGap: 40 },
      tooltip: {
        formatter: ({ seriesIndex, dataIndex }) => state.ids[answer.rows[groups[seriesIndex]?.[2][dataIndex]]] ?? "",
      },
      series: [
        ...groups.map(([name, color, part], k) => ({
          name,
          type: "scatter",
          color,
          symbol: symbol(k),
          symbolSize: 8,
          itemStyle: { opacity: 1 },
          data: part.map((row) => [before.margin[row], after.margin[row]]),
        })),
        {
          name: "no change",
          type: "line",
          silent: true,
          showSymbol: false,
          color: css("--quiet"),
          lineStyle: { type: "dashed" },
          data: [
            [low, low],
            [high, high],
          ],
        },
      ],
    },
  );
  made.on("click", ({ seriesIndex, dataIndex }) => {
    const k = groups[seriesIndex]?.[2][dataIndex];
    if (k !== undefined) lookAtSample(answer.rows[k]);
  });
}
