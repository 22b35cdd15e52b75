// The four lists: what each is about, its lines and its columns.
import { interval, partOf } from "./accuracy.js";
import { count, counted, noun, ordinal, percent, short } from "./numbers.js";
import { className, heldOutGroups, heldOutStart, modelTitle, noModel, shardName, state } from "./state.js";

// A list is {said, notes, lines: [{rows, classes, picks, …}], columns: [{title, value(line), show, number, samples}]},
// or {why} there is none; made(found) makes it from the server's answer, unpacked. rows are a line's samples, and picks those of
// them that are saved, or go into the basket with others. A column of samples with a box has one for each of them.
export const LISTS = {
  suspects: {
    title: "Suspected labels",
    command: "--suspects",
    about: "Training rows whose label a model that did not see them contradicts, the clearest first.",
    made: suspects,
  },
  duplicates: {
    title: "Near-duplicates and leaks",
    command: "--duplicates",
    about:
      "Pairs of rows that are nearly the same. One of a training row and a held-out one is a leak: the accuracy looks " +
      "better than it is. Pairs of different labels stand first: if they show the same, one label is wrong, and only you " +
      "can say which. A tick puts a sample in the basket; of pairs of one label, only the first sample is saved, or put " +
      "there with those shown, so that the other stays.",
    made: duplicates,
  },
  outliers: {
    title: "Outliers",
    command: "--outliers",
    about:
      "Rows by how far they lie from the training rows, beside what is usual in their class, the farthest first. Where " +
      "outliers end is for you to say: every row is listed.",
    made: outliers,
  },
  confused: {
    title: "Confused classes",
    command: "",
    about: "Held-out rows of one class that are taken for another, the pair of classes with most rows first.",
  },
};

const sample = { title: "sample", value: (line) => state.ids[line.rows[0]], samples: (line) => [line.rows[0]] };
const label = { title: "class", value: (line) => className(line.classes[0]) };
const shard = { title: "shard", value: (line) => shardName(state.shard[line.rows[0]]) };
const figure = (title, key) => ({ title, value: (line) => line[key], show: (line) => short(line[key]), number: true });

// Lines of one sample each.
const single = (rows, rest) => [...rows].map((row, k) => ({ rows: [row], picks: [row], ...rest(row, k) }));

function suspects({ method, rows, disagreeing, notes, row, says, margin }) {
  const of = `${count(disagreeing)} of ${counted(rows, "row")} ${noun(disagreeing, "is", "are")} given another class`;
  state.judge = method;
  return {
    said: `Judged by ${method}, ${of}. The margin is the logit of the label less the largest other one.`,
    notes,
    lines: single(row, (r, k) => ({ classes: [state.label[r], says[k]], margin: margin[k] })).slice(0, disagreeing),
    columns: [
      sample,
      label,
      { title: "others say", value: (line) => className(line.classes[1]) },
      figure("margin", "margin"),
      shard,
    ],
  };
}

function duplicates({ threshold, rows, leaks_found, pairs_found, leaks, notes, first, second, similarity }) {
  const both = (by) => (line) => {
    const [a, b] = line.rows.map(by);
    return a === b ? a : `${a}, ${b}`;
  };
  const lines = [...first].map((a, k) => {
    const pair = [a, second[k]],
      classes = pair.map((row) => state.label[row]),
      differ = classes[0] !== classes[1];
    return { rows: pair, picks: differ ? [] : [a], classes, differ, alike: similarity[k], leak: k < leaks };
  });
  const kinds = `${counted(leaks_found, "leak")} and ${counted(pairs_found, "pair")} of rows of one role`;
  return {
    said: `Among ${counted(rows, "row")}: ${kinds}. The similarity is 1 for the same and 0 for two rows at random; ${threshold} and more is listed.`,
    notes,
    lines: lines.sort((a, b) => b.differ - a.differ),
    columns: [
      { title: "kind", value: (line) => (line.leak ? "leak" : "pair") + (line.differ ? ", other label" : "") },
      { ...sample, box: true },
      { title: "and", value: (line) => state.ids[line.rows[1]], samples: (line) => [line.rows[1]], box: true },
      { ...figure("similarity", "alike"), show: (line) => line.alike.toFixed(4) },
      { title: "class", value: both((row) => className(state.label[row])) },
      { title: "shard", value: both((row) => shardName(state.shard[row])) },
    ],
  };
}

function outliers({ neighbour, rows, notes, row, times, distance }) {
  return {
    said: `${counted(rows, "row")} by the distance to the ${ordinal(neighbour)} nearest training row, in medians of the row's class.`,
    notes,
    lines: single(row, (r, k) => ({ classes: [state.label[r]], times: times[k], distance: distance[k] })),
    columns: [sample, label, figure("times the median", "times"), figure("distance", "distance"), shard],
  };
}

// From the held-out rows, under the model that the page is about; null until they are known.
export function confused() {
  if (!state.held) {
    const stage = state.stages["held-out predictions"];
    return stage?.ready ? { why: `None: ${stage.note || "there are no held-out rows"}.` } : null;
  }
  const { models, labels, rows } = state.held,
    { model } = state.overview,
    found = models[model],
    start = heldOutStart();
  if (!found) return { why: noModel() };
  const pairs = new Map(),
    of = state.overview.report.classes.map(() => []);
  labels.forEach((k, n) => {
    of[k].push(n);
    if (found[n] === k) return;
    const key = `${k} ${found[n]}`;
    if (!pairs.has(key)) pairs.set(key, { classes: [k, found[n]], rows: [] });
    pairs.get(key).rows.push(start + rows[n]);
  });
  const lines = [...pairs.values()].map((pair) => {
    const [truth, taken] = pair.classes,
      judged = heldOutGroups(of[truth], (n) => found[n] === taken);
    return { ...pair, picks: pair.rows, of: of[truth].length, judged };
  });
  const wrong = lines.reduce((sum, line) => sum + line.rows.length, 0);
  return {
    said: `${count(wrong)} of ${counted(labels.length, "held-out row")}${partOf(labels.length, state.held.of)} ${noun(wrong, "is", "are")} taken for another class (${modelTitle(model)}); the share of a class's rows has its 95 % interval${state.held.groups ? ", by groups" : state.held.unsearched ? ", by rows, not by groups (data.group)" : ""}.`,
    notes: [],
    lines: lines.sort((a, b) => b.rows.length - a.rows.length || share(b) - share(a)),
    columns: CONFUSED,
  };
}

const share = (line) => line.rows.length / line.of;
const bound = (line, k) => interval(line.rows.length, line.of, line.judged)[k];

const CONFUSED = [
  label,
  { title: "taken for", value: (line) => className(line.classes[1]) },
  { title: "rows", value: (line) => line.rows.length, number: true },
  { title: "of the class", value: share, show: (line) => percent(share(line), 1), number: true },
  { title: "at least", value: (line) => bound(line, 0), show: (line) => percent(bound(line, 0), 1), number: true },
  { title: "at most", value: (line) => bound(line, 1), show: (line) => percent(bound(line, 1), 1), number: true },
  { title: "samples", value: (line) => line.rows.map((row) => state.ids[row]).join(" "), samples: (line) => line.rows },
];
