// What may be wrong with the data: four lists, the worst first, made by the server when they are asked for.
import { confused, LISTS } from "./check_lists.js";
import { choice, h, scrolled } from "./elements.js";
import { saveTable, saveText } from "./files.js";
import { count, counted } from "./numbers.js";
import { isPicked, pick, pickedBar } from "./picked.js";
import { noPictures, peeks, thumbnail } from "./pictures.js";
import { showSample } from "./sample.js";
import { ask, source } from "./source.js";
import { state } from "./state.js";

const LISTED = 200, // lines of a list that are in the document
  THUMBS = 6, // samples of a line that are shown, where it has many
  POLL_MS = 400,
  NARROW = 900; // px; below it a sample stands below the list
// What is chosen here stays when another view is shown; found are the lists by name.
const here = { name: "suspects", class: "", shard: "", sort: null, falling: false, found: {}, pictures: false };

export function checksView(main) {
  const tabs = h("div", { class: "tools", role: "group", "aria-label": "Lists" }),
    place = h("div", { id: "check" }),
    side = h("aside", { class: "side", "aria-label": "Sample" }),
    bar = pickedBar(draw);
  main.append(h("h1", {}, "Check the data"), tabs, h("div", { class: "atlas" }, h("div", {}, bar.node, place), side));
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
    Object.assign(here, { name, sort: null, falling: false });
    draw();
    fetchList(name, place, draw);
  }
  function draw() {
    bar.update();
    tabs.replaceChildren(
      ...Object.entries(LISTS).map(([name, { title }]) =>
        h("button", { type: "button", "aria-pressed": name === here.name, onclick: () => choose(name) }, title),
      ),
    );
    place.replaceChildren(...listed({ open, draw }));
  }
  noPictures().then((why) => {
    here.pictures = !why;
    if (place.isConnected) draw();
  });
  choose(here.name);
  return {
    refresh: () => {
      if (here.name === "confused" && !here.found.confused) draw();
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
  const lines = sorted(filtered(list.lines), list.columns);
  const shown =
    counted(lines.length, "line") + (lines.length > LISTED ? `; the first ${LISTED} are shown, and all are saved` : "");
  return [
    head,
    h("p", {}, list.said),
    ...list.notes.map((note) => h("p", { class: "quiet" }, note)),
    tools(list, lines, on),
    h("p", { id: "lines", role: "status", "data-count": lines.length }, shown),
    lines.length ? tableOf(list, lines, on) : null,
  ].filter((part) => part !== null);
}

function filtered(lines) {
  const { class: k, shard } = here;
  return lines.filter(
    ({ classes, rows }) =>
      (k === "" || classes.includes(+k)) && (shard === "" || rows.some((row) => state.shard[row] === +shard)),
  );
}

// Lines by the column that was clicked, or as they came: the worst first.
function sorted(lines, columns) {
  const column = columns.find(({ title }) => title === here.sort);
  if (!column) return lines;
  const sign = here.falling ? -1 : 1,
    value = column.value;
  return lines.toSorted((a, b) => {
    const [x, y] = [value(a), value(b)];
    return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  });
}

function tools(list, lines, { draw }) {
  const filter = (key) => (value) => {
    here[key] = value;
    draw();
  };
  const rows = [...new Set(lines.flatMap((line) => line.rows))];
  const button = (text, onclick) => h("button", { type: "button", disabled: !lines.length, onclick }, text);
  const values = (line) => list.columns.map(({ value }) => value(line));
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
    button(`Pick ${rows.length === 1 ? "the sample" : `all ${count(rows.length)} samples`}`, () => {
      pick(rows, true);
      draw();
    }),
    button("Save the ids", () =>
      saveText(
        `${here.name}.txt`,
        rows.map((row) => state.ids[row]),
      ),
    ),
    button("Save as CSV", () =>
      saveTable(`${here.name}.csv`, [...list.columns.map(({ title }) => title)], lines.map(values)),
    ),
  );
}

function tableOf(list, lines, on) {
  const heads = list.columns.map(({ title, number }) =>
    h(
      "th",
      { class: number ? "n" : "", scope: "col", "aria-sort": here.sort === title ? direction() : false },
      h("button", { class: "sort", type: "button", onclick: () => sortBy(title, on) }, title + arrow(title)),
    ),
  );
  const body = lines.slice(0, LISTED).map((line) => lineOf(list, line, on));
  const inner = h(
    "table",
    { "aria-label": LISTS[here.name].title },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "pick"), heads)),
    h("tbody", {}, body),
  );
  const node = scrolled(inner, true);
  node.classList.add("high");
  return node;
}

const direction = () => (here.falling ? "descending" : "ascending");
const arrow = (title) => (here.sort === title ? (here.falling ? " ▼" : " ▲") : "");

function sortBy(title, { draw }) {
  here.falling = here.sort === title && !here.falling;
  here.sort = title;
  draw();
}

function lineOf(list, line, { open, draw }) {
  const box = h("input", {
    type: "checkbox",
    checked: line.rows.every(isPicked),
    "aria-label": "pick " + line.rows.map((row) => state.ids[row]).join(" and "),
    onchange: (e) => {
      pick(line.rows, e.target.checked);
      draw();
    },
  });
  const cells = list.columns.map(({ show, value, number, samples }) =>
    h("td", { class: number ? "n" : "" }, samples ? thumbs(samples(line), open) : show ? show(line) : value(line)),
  );
  const chosen = line.rows.includes(state.selected);
  return h("tr", { "data-rows": line.rows.join(" "), "aria-selected": String(chosen) }, h("td", {}, box), cells);
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
  const more = rows.length > THUMBS ? h("span", { class: "quiet" }, `and ${rows.length - THUMBS} more`) : null;
  return h("div", { class: "thumbs" }, rows.slice(0, THUMBS).map(one), more);
}
