// Samples put aside to forget: what that would cost and change, and the command that does it.
import { basketStays, lookAtSample } from "./address.js";
import { button, h, link, quiet, replaceTable, scrolled, section, table } from "./elements.js";
import { saveIds } from "./files.js";
import { onHeldOut, solveButton } from "./forgetting.js";
import { knownAs } from "./known.js";
import { bytes, count, counted, noun, short, shortBound } from "./numbers.js";
import { emptyButton, onPick, pick } from "./picked.js";
import { ask, outdated, source } from "./source.js";
import { className, modelTitle, shardName, state } from "./state.js";

const LISTED = 500;
// So many ids stand in the command itself, more in a file.
const INLINE = 8;
// Of an address that asks for the cost.
const LONGEST_QUERY = 60000;

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", `'"'"'`) + "'");

// What to type to forget rows: their ids, or a file of them.
export function command(rows) {
  const few = rows.length <= INLINE;
  const ids = few ? rows.map((row) => "--sample " + quoted(state.ids[row])).join(" ") : "--file ids.txt";
  return `taftcache forget ${quoted(state.overview.report.store)} ${ids}`;
}

// Row numbers as the server takes them: what each is larger than the one before it.
const asked = (rows) => rows.map((row, k) => (row - (rows[k - 1] ?? 0)).toString(36)).join(".");

export function basketView(main) {
  const head = h("div"),
    region = scrolled(table("Basket", COLUMNS, []), true),
    more = quiet(`${LISTED} are listed; the headers sort all.`),
    title = h("h1", { tabindex: "-1" }, "Basket"),
    samples = section("Samples", region, more);
  function draw() {
    const rows = [...state.basket].sort((a, b) => a - b);
    head.replaceChildren(...(rows.length ? about(rows) : [h("p", {}, state.lostBasket ? LOST : EMPTY)]));
    replaceTable(region, table("Basket", COLUMNS, rows, null, LISTED));
    more.hidden = rows.length <= LISTED;
    samples.hidden = !rows.length;
  }
  main.append(title, ...missing(), head, h("p", { class: "tools" }, emptyButton()), samples);
  onPick(head, () => {
    draw();
    if (!state.basket.size && document.activeElement === document.body) title.focus(); // its button went with the last
  });
  draw();
}

// Of the basket in the address, as it was opened.
function missing() {
  const ids = state.missingPicks,
    more = ids.length - INLINE;
  if (!ids.length) return [];
  return [
    h("p", {}, `${counted(ids.length, "id")} of the address ${noun(ids.length, "is", "are")} not in this store:`),
    h(
      "ul",
      { id: "missing" },
      ids.slice(0, INLINE).map((id) => knownAs("li", id)),
      more > 0 ? h("li", {}, `and ${count(more)} more`) : null,
    ),
  ];
}

const EMPTY =
  "Empty. Put samples in it from the map, its pictures or its table, from the lists of what may be wrong, from a sample's own page or from a comparison.";

const LOST =
  "Not here: the basket of this address was too long for it, so it stayed in the tab where it was filled, for as long as that tab is open. A basket that was saved as a file of ids is in that file.";

const STAYS = {
  "": "",
  tab: " It is too long for the address, so it stays in this tab.",
  nowhere:
    " It is too long for the address, and for what this browser keeps: it goes when the page is loaded again, so save the ids.",
};

const OUTDATED =
  "The store has changed since, and some of them may be gone from it. The reloaded page has the command for those that are left.";

function about(rows) {
  const first = h("p", {}, `${counted(rows.length, "sample")}. Nothing here changes the store.${STAYS[basketStays()]}`);
  if (outdated()) return [first, h("p", {}, OUTDATED)];
  return [first, ...toForget(rows), ...(source.live ? [price(rows), change(rows)] : [])];
}

function toForget(rows) {
  const text = command(rows),
    code = h("code", { id: "command", tabindex: "0" }, text);
  const said = h("span", { class: "quiet", role: "status" });
  const copy = () =>
    navigator.clipboard.writeText(text).then(
      () => (said.textContent = "copied"),
      () => getSelection().selectAllChildren(code),
    );
  return [
    h("h2", {}, "To forget them"),
    h("p", { class: "command" }, code),
    h(
      "p",
      { class: "tools" },
      button("Copy", copy),
      button("Save the ids as a file", () => saveIds(rows)),
      said,
    ),
  ];
}

const COLUMNS = [
  ["sample", (row) => link(state.ids[row], () => lookAtSample(row)), false, (row) => state.ids[row]],
  ["class", (row) => className(state.label[row])],
  ["shard", (row) => shardName(state.shard[row])],
  ["margin", (row) => short(state.columns.margin?.[row]), true, (row) => state.columns.margin?.[row]],
  ["", (row) => link("take out", () => pick([row], false), { "aria-label": "take out " + state.ids[row] })],
];

// What `taftcache forget --dry-run` says, into the element that is returned.
function price(rows) {
  const node = h("div", { id: "cost", role: "status" }, quiet("Being planned …"));
  const query = asked(rows);
  if (query.length > LONGEST_QUERY) {
    node.replaceChildren(h("p", {}, `Too many to ask for here: ${command(rows)} --dry-run says what it costs.`));
    return node;
  }
  ask("cost", { rows: query }).then(
    (found) => node.replaceChildren(h("h2", {}, "What it costs"), ...costs(found)),
    (error) => node.replaceChildren(h("p", {}, error.message)),
  );
  return node;
}

function costs(found) {
  const passes = Object.values(found.passes).reduce((sum, n) => sum + n, 0),
    written = found.shards.reduce((sum, shard) => sum + shard.rewritten, 0);
  const lines = [
    `${counted(found.samples, "sample")} in ${counted(found.shards.length, "shard")}; ${counted(written, "row")} ` +
      `${noun(written, "is", "are")} written again, at most ${bytes(found.bytes)}.`,
    found.renewed.length
      ? `Made again: ${found.renewed.map(modelTitle).join(", ")}.` +
        (passes
          ? ` Their solves took ${counted(passes, "pass", "passes")} over their rows when they were made.`
          : " That takes no solve.")
      : "No model is made again.",
  ];
  if (found.destroyed.length) lines.push(`Destroyed: ${found.destroyed.map(modelTitle).join(", ")}.`);
  if (found.dropped_shards.length) lines.push(`Left without a row, and dropped: ${found.dropped_shards.join(", ")}.`);
  if (found.classes.length) lines.push(`Classes that leave with their last row: ${found.classes.join(", ")}.`);
  return [
    ...lines.map((line) => h("p", {}, line)),
    scrolled(table("Shards concerned", SHARDS, found.shards)),
    ...found.notes.map((note) => quiet(`Note: ${note}.`)),
  ];
}

const SHARDS = [
  ["shard", (x) => x.name],
  ["rows that leave", (x) => count(x.leaving), true],
  ["rows written again", (x) => count(x.rewritten), true],
];

// The solve without them, when it is asked for.
function change(rows) {
  const query = asked(rows),
    place = h("div", { id: "change" });
  const disabled = query.length > LONGEST_QUERY,
    attributes = { id: "solve-many", disabled };
  return section(
    "What it changes",
    solveButton("Solve without them", attributes, "leave-many", { rows: query }, place, answer),
    place,
  );
}

function answer(found) {
  const parts = Object.entries(found.solved),
    held =
      found.changed === null ? "No held-out rows to compare on." : `By the mean of the components, ${onHeldOut(found)}`;
  const gone = found.dropped.length ? ` Left out of it: ${found.dropped.map(modelTitle).join(", ")}.` : "";
  return [
    h("p", {}, held + gone),
    quiet(ofDefault()),
    parts.length
      ? scrolled(table("Components solved again", SOLVED, parts))
      : h("p", {}, "No component is solved again."),
  ];
}

// What is solved here is of components; the accuracy that Overview shows may be another model's.
function ofDefault() {
  const { model } = state.overview;
  if (!model || model === "models/mean") return "";
  return (
    `The store's default model, whose accuracy Overview shows, is another: ${modelTitle(model)}. It is not solved ` +
    "here; taftcache forget makes it again and says what became of its accuracy."
  );
}

const SOLVED = [
  ["component", ([name]) => modelTitle(name)],
  ["moves by", ([, x]) => short(x.moved), true],
  ["of norm", ([, x]) => short(x.norm), true],
  ["λ", ([, x]) => (x.ridge[0] === x.ridge[1] ? short(x.ridge[0]) : x.ridge.map(short).join(" → ")), true],
  ["exact to", ([, x]) => shortBound(x.distance_bound), true],
  ["passes", ([, x]) => x.passes, true],
];
