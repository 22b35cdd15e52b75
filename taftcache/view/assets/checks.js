// What may be wrong with the data: four lists, the worst first, made by the server when they are asked for.
import { keep } from "./address.js";
import { confused, LISTS } from "./check_lists.js";
import { button, choice, h, oneOf, quiet, scrolled, sorted, table, working } from "./elements.js";
import { saveIds, saveTable } from "./files.js";
import { reveal } from "./lines.js";
import { tell } from "./live.js";
import { count, counted, inLine } from "./numbers.js";
import { isPicked, keepButton, pickBox, pickedBar } from "./picked.js";
import { aboutPictures, peeks, pictureNote, thumbnail } from "./pictures.js";
import { showSample } from "./sample.js";
import { askUntilDone, source, unpack } from "./source.js";
import { shardNames, state } from "./state.js";

const LISTED = 200, // lines of a list that are in the document
  THUMBS = 5, // samples of a line that are shown, where it has many
  NARROW = 900; // px; below it a sample stands below the list
// The lists that were made, by name; whether there are pictures.
const here = { found: {}, pictures: false };

export function checksView(main) {
  const tabs = Object.entries(LISTS).map(([name, { title }]) =>
    button(title, () => choose(name), { "data-name": name }),
  );
  const place = h("div", { id: "check" }),
    side = h("aside", { class: "side", "aria-label": "Sample" });
  main.append(
    h("h1", {}, "Check the data"),
    h("div", { class: "tools", role: "group", "aria-label": "Lists" }, tabs),
    pictureNote(),
    h("div", { class: "atlas" }, h("div", {}, pickedBar(false), place), side),
  );
  if (state.selected === null) side.append(quiet("Choose a sample in the list."));
  else showSample(side, state.ids[state.selected], open);

  function open(row) {
    state.selected = row;
    keep();
    showSample(side, state.ids[row], open);
    for (const line of place.querySelectorAll("tr[data-rows]"))
      line.setAttribute("aria-current", line.dataset.rows.split(" ").includes(String(row)));
    const lines = [...place.querySelectorAll('tr[aria-current="true"]')], // a sample may stand in several pairs
      clicked = document.activeElement.closest("tr"),
      line = lines.includes(clicked) ? clicked : lines[0];
    if (line) reveal(line.closest(".scroll"), line);
    if (innerWidth < NARROW) side.scrollIntoView();
  }
  function choose(name) {
    state.check.list = Object.hasOwn(LISTS, name) ? name : "suspects";
    draw();
    fetchList(state.check.list, place, draw);
  }
  function draw() {
    const { id } = document.activeElement;
    keep();
    for (const tab of tabs) tab.setAttribute("aria-pressed", tab.dataset.name === state.check.list);
    place.replaceChildren(...listed({ open, draw }));
    if (id) document.getElementById(id)?.focus();
    const said = place.querySelector("#lines, #why");
    if (said) tell(`${LISTS[state.check.list].title}: ${said.textContent}`);
  }
  aboutPictures().then(({ why_not: why }) => {
    here.pictures = !why;
    if (place.isConnected) draw();
  });
  choose(state.check.list);
  return {
    refresh: () => {
      if (state.check.list === "confused" && place.querySelector("progress")) draw();
    },
  };
}

// Ask for a list, and again until it is made, as long as it is looked at; draw() is called when it is.
async function fetchList(name, place, draw) {
  if (name === "confused" || !source.live || here.found[name]) return;
  const wanted = () => place.isConnected && state.check.list === name,
    say = (answer) => place.replaceChildren(h("p", {}, LISTS[name].about), ...underWay(answer));
  const answer = await askUntilDone("check", { name }, wanted, say);
  if (!answer) return;
  here.found[name] = answer.found ? LISTS[name].made(unpack(answer.found)) : { why: `None: ${inLine(answer.error)}.` };
  draw();
}

function underWay({ state: how, doing, done, total }) {
  if (how === "busy") return working("waiting for another list …");
  return working(doing ? `${doing}: ${count(done)} of ${count(total)}` : "starting …", done, total);
}

// The list that is chosen, as far as it is known.
function listed(on) {
  const name = state.check.list,
    { about, command, title } = LISTS[name],
    list = name === "confused" ? confused() : here.found[name];
  const head = h("p", {}, about);
  if (!list && !source.live) {
    const why = `Not in this report: taftcache view makes it, and taftcache inspect ${command} lists the first.`;
    return [head, quiet(why)];
  }
  if (!list) return [head, ...underWay({})];
  if (list.why) return [head, quiet(list.why, { id: "why" })];
  const columns = columnsOf(list, on),
    lines = filtered(list.lines);
  const shown =
    counted(lines.length, "line") +
    (lines.length > LISTED ? `; the first ${LISTED} are shown, the headers sort all` : "");
  return [
    head,
    h("p", {}, list.said),
    ...list.notes.map((note) => quiet(note)),
    tools(list, lines, () => sorted(title, columns, lines), on),
    h("p", { id: "lines", "data-count": lines.length }, shown),
    lines.length ? scrolled(table(title, columns, lines, mark, LISTED), true) : null,
  ].filter((part) => part !== null);
}

function filtered(lines) {
  const { class: k, shard } = state.check;
  return lines.filter(
    ({ classes, rows }) =>
      (k === "" || classes.includes(+k)) && (shard === "" || rows.some((row) => state.shard[row] === +shard)),
  );
}

// now() gives the lines as the headers have sorted them.
function tools(list, lines, now, { draw }) {
  const filter = (key) => (value) => {
    state.check[key] = value;
    draw();
  };
  const chosen = (key, label, options) => choice("check-" + key, label, oneOf(options), state.check[key], filter(key));
  const save = (text, onclick) => button(text, onclick, { disabled: !lines.length });
  const values = (line) => list.columns.map(({ value }) => value(line)),
    saved = counted(distinct(lines).length, "id");
  return h(
    "div",
    { class: "tools" },
    chosen("class", "Class", state.overview.report.classes),
    chosen("shard", "Shard", shardNames()),
    save(`Save ${saved}`, () => saveIds(distinct(now()), `${state.check.list}.txt`)),
    save("Save as CSV", () =>
      saveTable(
        `${state.check.list}.csv`,
        list.columns.map(({ title }) => title),
        now().map(values),
      ),
    ),
    lines.length ? keepButton(() => distinct(now().slice(0, LISTED)), "Put those shown in the basket") : null,
  );
}

const distinct = (lines) => [...new Set(lines.flatMap(({ picks }) => picks))];

// The columns as a table takes them, the one that puts a line's samples into the basket before them.
function columnsOf(list, on) {
  const shown = list.columns.map(({ title, value, show = value, number, samples, box }) => [
    title,
    samples ? (line) => thumbs(samples(line), on.open, box) : show,
    number,
    value,
  ]);
  if (list.columns.some(({ box }) => box)) return shown;
  return [["basket", ({ picks }) => pickBox(picks), true, ({ picks }) => +picks.every(isPicked)], ...shown];
}

function mark(line, { rows }) {
  line.dataset.rows = rows.join(" ");
  line.setAttribute("aria-current", rows.includes(state.selected));
}

// Buttons that open samples, with their pictures where there are any.
function thumbs(rows, open, box) {
  const one = (row) => {
    const image = here.pictures ? thumbnail(row, 48, (e) => e.target.remove()) : null,
      named = rows.length === 1 || !image;
    const parts = [image, named ? h("span", {}, breakable(state.ids[row])) : null],
      node = button(parts, () => open(row), { class: "thumb", "aria-label": state.ids[row] });
    peeks(node, () => row);
    return node;
  };
  const more = rows.length > THUMBS ? h("span", { class: "quiet" }, `+ ${rows.length - THUMBS}`) : null;
  return h(
    "div",
    { class: "thumbs" },
    box ? rows.map((row) => pickBox([row])) : null,
    rows.slice(0, THUMBS).map(one),
    more,
  );
}

// An id that may go on in the next line after each "/".
const breakable = (id) => id.split(/(?<=[/])/).flatMap((part) => [part, h("wbr")]);
