// What may be wrong with the data: four lists, the worst first, made by the server when they are asked for.
import { confused, LISTS } from "./check_lists.js";
import { choice, h, scrolled, sorted, table } from "./elements.js";
import { saveTable, saveText } from "./files.js";
import { count, counted } from "./numbers.js";
import { isPicked, pick, pickedBar } from "./picked.js";
import { noPictures, peeks, thumbnail } from "./pictures.js";
import { showSample } from "./sample.js";
import { ask, source } from "./source.js";
import { state } from "./state.js";

const LISTED = 200, // lines of a list that are in the document
  THUMBS = 5, // samples of a line that are shown, where it has many
  POLL_MS = 400,
  NARROW = 900; // px; below it a sample stands below the list
// What is chosen here stays when another view is shown; found are the lists by name.
const here = { name: "suspects", class: "", shard: "", found: {}, pictures: false };

export function checksView(main) {
  const tabs = Object.entries(LISTS).map(([name, { title }]) =>
    h("button", { type: "button", "data-name": name, onclick: () => choose(name) }, title),
  );
  const place = h("div", { id: "check" }),
    side = h("aside", { class: "side", "aria-label": "Sample" }),
    bar = pickedBar(draw);
  main.append(
    h("h1", {}, "Check the data"),
    h("div", { class: "tools", role: "group", "aria-label": "Lists" }, tabs),
    h("div", { class: "atlas" }, h("div", {}, bar.node, place), side),
  );
  if (state.selected === null) side.append(h("p", { class: "quiet" }, "Choose a sample in the list."));
  else showSample(side, state.ids[state.selected], open);

  function open(row) {
    state.selected = row;
    showSample(side, state.ids[row], open);
    for (const line of place.querySelectorAll("tr[data-rows]"))
      line.setAttribute("aria-selected", line.dataset.rows.split(" ").includes(String(row)));
    if (innerWidth < NARROW) side.scrollIntoView();
  }
  function choose(name) {
    here.name = name;
    draw();
    fetchList(name, place, draw);
  }
  function draw() {
    const { id } = document.activeElement;
    bar.update();
    for (const tab of tabs) tab.setAttribute("aria-pressed", tab.dataset.name === here.name);
    place.replaceChildren(...listed({ open, draw, picked: bar.update }));
    if (id) document.getElementById(id)?.focus();
  }
  noPictures().then((why) => {
    here.pictures = !why;
    if (place.isConnected) draw();
  });
  choose(here.name);
  return {
    refresh: () => {
      if (here.name === "confused" && place.querySelector("progress")) draw();
    },
  };
}

// Ask for a list, and again until it is made, as long as it is looked at; draw() is called when it is.
async function fetchList(name, place, draw) {
  if (name === "confused" || !source.live || here.found[name]) return;
  while (place.isConnected && here.name === name) {
    const answer = await ask("check", { name }).catch((error) => ({ state: "failed", error: error.message }));
    if (!place.isConnected || here.name !== name) return;
    if (answer.state === "done" || answer.state === "failed") {
      here.found[name] = answer.found ? LISTS[name].made(answer.found) : { why: answer.error };
      draw();
      return;
    }
    place.replaceChildren(h("p", {}, LISTS[name].about), ...working(answer));
    await new Promise((next) => setTimeout(next, POLL_MS));
  }
}

function working({ doing, done, total }) {
  const text = doing ? `${doing}: ${count(done)} of ${count(total)}` : "waiting for another list …";
  return [
    h("p", { class: "quiet", role: "status" }, text),
    h("progress", { "aria-label": "being made", ...(total ? { max: total, value: done } : {}) }),
  ];
}

// The list that is chosen, as far as it is known.
function listed(on) {
  const { about, command } = LISTS[here.name],
    list = here.name === "confused" ? confused() : here.found[here.name];
  const head = h("p", {}, about);
  if (!list && !source.live) {
    const why = `Not in this report: taftcache view makes it, and taftcache inspect ${command} lists the first.`;
    return [head, h("p", { class: "quiet" }, why)];
  }
  if (!list) return [head, ...working({})];
  if (list.why) return [head, h("p", { class: "quiet", id: "why" }, "None: " + list.why)];
  const { title } = LISTS[here.name],
    columns = columnsOf(list, on),
    lines = filtered(list.lines);
  const shown =
    counted(lines.length, "line") +
    (lines.length > LISTED ? `; the first ${LISTED} are shown, the headers sort all` : "");
  return [
    head,
    h("p", {}, list.said),
    ...list.notes.map((note) => h("p", { class: "quiet" }, note)),
    tools(list, lines, () => sorted(title, columns, lines), on),
    h("p", { id: "lines", role: "status", "data-count": lines.length }, shown),
    lines.length ? scrolled(table(title, columns, lines, mark, LISTED), true) : null,
  ].filter((part) => part !== null);
}

function filtered(lines) {
  const { class: k, shard } = here;
  return lines.filter(
    ({ classes, rows }) =>
      (k === "" || classes.includes(+k)) && (shard === "" || rows.some((row) => state.shard[row] === +shard)),
  );
}

// now() gives the lines as the headers have sorted them.
function tools(list, lines, now, { draw }) {
  const filter = (key) => (value) => {
    here[key] = value;
    draw();
  };
  const button = (text, onclick) => h("button", { type: "button", disabled: !lines.length, onclick }, text);
  const values = (line) => list.columns.map(({ value }) => value(line)),
    saved = counted(distinct(lines).length, "id");
  return h(
    "div",
    { class: "tools" },
    choice(
      "check-class",
      "Class",
      [["", "all"], ...state.overview.report.classes.map((c, k) => [k, c])],
      here.class,
      filter("class"),
    ),
    choice(
      "check-shard",
      "Shard",
      [["", "all"], ...state.overview.shards.map((s, k) => [k, s.name])],
      here.shard,
      filter("shard"),
    ),
    button("Put those shown in the basket", () => {
      pick(distinct(now().slice(0, LISTED)), true);
      draw();
    }),
    button(`Save ${saved}`, () =>
      saveText(
        `${here.name}.txt`,
        distinct(now()).map((row) => state.ids[row]),
      ),
    ),
    button("Save as CSV", () =>
      saveTable(
        `${here.name}.csv`,
        list.columns.map(({ title }) => title),
        now().map(values),
      ),
    ),
  );
}

const distinct = (lines) => [...new Set(lines.flatMap(({ picks }) => picks))];

// The columns as a table takes them, the one that puts a line's samples into the basket before them.
function columnsOf(list, on) {
  const shown = list.columns.map(({ title, value, show = value, number, samples }) => [
    title,
    samples ? (line) => thumbs(samples(line), on.open) : show,
    number,
    value,
  ]);
  return [["", (line) => tickBox(line, on)], ...shown];
}

function tickBox({ picks }, { picked }) {
  return h("input", {
    type: "checkbox",
    checked: picks.every(isPicked),
    "aria-label": `put ${picks.map((row) => state.ids[row]).join(" and ")} in the basket`,
    onchange: (e) => {
      pick(picks, e.target.checked);
      picked();
    },
  });
}

function mark(line, { rows }) {
  line.dataset.rows = rows.join(" ");
  line.setAttribute("aria-selected", rows.includes(state.selected));
}

// Buttons that open samples, with their pictures where there are any.
function thumbs(rows, open) {
  const one = (row) => {
    const image = here.pictures ? thumbnail(row, 48, (e) => e.target.remove()) : null,
      named = rows.length === 1 || !image;
    const button = h(
      "button",
      { class: "thumb", type: "button", "aria-label": state.ids[row], onclick: () => open(row) },
      image,
      named ? h("span", {}, state.ids[row]) : null,
    );
    peeks(button, () => row);
    return button;
  };
  const more = rows.length > THUMBS ? h("span", { class: "quiet" }, `+ ${rows.length - THUMBS}`) : null;
  return h("div", { class: "thumbs" }, rows.slice(0, THUMBS).map(one), more);
}
