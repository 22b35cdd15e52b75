// What was chosen on the page, in its address: to reload it, to go back or to open it elsewhere restores it.
import { onSort, sorts } from "./elements.js";
import { clearFilters, shardNames, state } from "./state.js";

// Characters of one part of the address; a longer one stays in this tab, and the address has its key alone.
const LONGEST = 2000;
const KEPT = "@";
// Views that show a sample beside them.
const BESIDE = ["map", "check"];

const names = { class: () => state.overview.report.classes, shard: shardNames };

// A choice among names, held as its number in a text; "" for none.
const named = (of, key, list) => ({
  write: () => (of()[key] === "" ? "" : list()[of()[key]]),
  read: (text) => (of()[key] = list().includes(text) ? String(list().indexOf(text)) : ""),
});
const plain = (of, key, none = "") => ({
  write: () => (of()[key] === none ? "" : of()[key]),
  read: (text) => (of()[key] = text || none),
});
const set = (key) => ({
  write: () => [...state[key]].join("\n"),
  read: (text) => (state[key] = new Set(text ? text.split("\n") : [])),
});
const filters = () => state.filters,
  pair = () => state.pair,
  check = () => state.check,
  all = () => state;

// Each part of the address: write gives its text, "" where nothing is chosen, and read takes it in.
const PARTS = {
  class: named(filters, "class", names.class),
  shard: named(filters, "shard", names.shard),
  taken: named(filters, "taken", names.class),
  by: plain(filters, "by"),
  only: plain(filters, "only"),
  text: plain(filters, "text"),
  colour: plain(all, "colour", "class"),
  space: plain(all, "space", null),
  model: {
    write: () => (state.model === state.overview.model ? "" : (state.model ?? "")),
    read: (text) => (state.model = text || null),
  },
  before: plain(pair, "before"),
  after: plain(pair, "after"),
  rows: plain(pair, "rows", "held-out"),
  show: plain(pair, "show", "changed"),
  label: plain(pair, "class"),
  list: plain(check, "list", "suspects"),
  "list-class": named(check, "class", names.class),
  "list-shard": named(check, "shard", names.shard),
  order: {
    write: () => state.order.key + (state.order.falling ? " falling" : ""),
    read: (text) => (state.order = { key: text.split(" ")[0], falling: text.endsWith(" falling") }),
  },
  hidden: set("hidden"),
  without: set("out"),
  sort: {
    write: () => (sorts.size ? JSON.stringify([...sorts]) : ""),
    read: readSorts,
  },
  lasso: {
    write: () => state.lasso && [state.lassoIn, ...state.lasso.map((at) => at.map(rounded).join(","))].join(" "),
    read: readLasso,
  },
};

// The basket is the page's and not a view's: going back leaves it as it is.
const BASKET = {
  write: () => [...state.basket].map((row) => state.ids[row]).join("\n"),
  read: (text) => {
    const places = new Map(state.ids.map((id, row) => [id, row]));
    const ids = text.split("\n").filter((id) => id);
    state.basket = new Set(ids.filter((id) => places.has(id)).map((id) => places.get(id)));
    state.missingPicks = ids.filter((id) => !places.has(id));
  },
};

const rounded = (v) => +v.toPrecision(6);

function readSorts(text) {
  sorts.clear();
  attempt(() => {
    for (const [caption, [title, way]] of JSON.parse(text)) sorts.set(caption, [title, way]);
  });
}

function readLasso(text) {
  const [where, ...corners] = text.split(" "),
    points = corners.map((corner) => corner.split(",").map(Number));
  const whole = points.length > 2 && points.flat().every(Number.isFinite);
  [state.lasso, state.lassoIn] = whole ? [points, where] : [null, null];
}

// A frame may have no storage, and none of its own address; an address may have been cut short.
const attempt = (work) => {
  try {
    return work();
  } catch {
    return null;
  }
};

function keyOf(text) {
  let key = 5381;
  for (let i = 0; i < text.length; i++) key = (key * 33 + text.charCodeAt(i)) >>> 0;
  return KEPT + key.toString(36);
}

const kept = (key) => attempt(() => sessionStorage.getItem("taftcache " + key));

function shortened(text) {
  if (text.length <= LONGEST) return text.startsWith(KEPT) ? KEPT + text : text;
  const key = keyOf(text);
  attempt(() => sessionStorage.setItem("taftcache " + key, text));
  return key;
}

// "" for the key of what another tab has, or none; name is what state.lost then calls it.
function lengthened(text, name) {
  if (!text.startsWith(KEPT)) return text;
  if (text.startsWith(KEPT + KEPT)) return text.slice(KEPT.length); // no key
  const found = kept(text);
  if (found === null) state.lost.push(name);
  return found ?? "";
}

// Where the basket is when it is too long for the address: "tab", or "nowhere" if this browser keeps nothing so long.
export function basketStays() {
  const text = BASKET.write();
  return text.length <= LONGEST ? "" : kept(keyOf(text)) === text ? "tab" : "nowhere";
}

// The id of the sample that the view shows beside it; null without one.
function besideView() {
  if (!BESIDE.includes(state.view)) return null;
  return state.selected === null ? state.missing : state.ids[state.selected];
}

function written() {
  const query = new URLSearchParams();
  for (const [key, part] of Object.entries({ ...PARTS, basket: BASKET })) {
    const text = part.write();
    if (text) query.set(key, shortened(text));
  }
  if (state.lostBasket) query.set("basket", state.lostBasket);
  const id = besideView(),
    sample = id === null ? "" : "/" + encodeURIComponent(id);
  const tail = query.toString();
  return `#${state.view}${sample}${tail ? "?" + tail : ""}`;
}

// Put what is chosen now into the address, as the same place in the tab's history, and the view or its sample into the
// title.
export function keep() {
  attempt(() => history.replaceState({ kept: true }, "", written()));
  document.title = `${besideView() ?? document.querySelector("h1")?.textContent} · ${state.overview.report.store}`;
}

// Take the address in. One without choices, typed or followed from a link, changes the view alone.
export function restore(first) {
  const [path, tail] = split(location.hash.slice(1)),
    [view, id] = path.split("/");
  state.view = view || document.documentElement.dataset.view || "overview";
  const sample = id ? attempt(() => decodeURIComponent(id)) : null,
    row = state.ids.indexOf(sample);
  state.missing = row < 0 ? sample : null;
  if (sample !== null) state.selected = row < 0 ? null : row;
  if (tail === null && !history.state?.kept) return;
  const query = new URLSearchParams(tail ?? "");
  for (const [key, part] of Object.entries(PARTS)) part.read(lengthened(query.get(key) ?? "", key));
  if (!first || !query.has("basket")) return;
  BASKET.read(lengthened(query.get("basket"), "basket"));
  if (state.lost.includes("basket")) state.lostBasket = query.get("basket");
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text, null] : [text.slice(0, at), text.slice(at + 1)];
}

let shown = () => {};
// show() is called when another view is opened.
export const onOpen = (show) => (shown = show);

function open(view) {
  state.view = view;
  state.missing = null; // the place that is left keeps it
  attempt(() => history.pushState({ kept: true }, "", written()));
  shown();
}

// To another view, with what is chosen; the browser's way back leads here.
export function go(view) {
  keep();
  open(view);
}

// To the map with these filters alone: numbers of class and shard as they stand in state.filters.
export function lookAt(wanted) {
  keep();
  clearFilters();
  for (const [key, value] of Object.entries(wanted)) state.filters[key] = String(value);
  state.selected = null;
  open("map");
}

// To one of the lists of what may be wrong.
export function lookAtList(list) {
  keep();
  state.check = { list, class: "", shard: "" };
  open("check");
}

// To a sample on the map.
export function lookAtSample(row) {
  keep();
  state.selected = row;
  open("map");
}

onSort(keep);
