// Views by the address's fragment; the background work's progress; light and dark.
import { go, keep, onOpen, restore } from "./address.js";
import { basketView } from "./basket.js";
import { dropCharts } from "./charts.js";
import { checksView } from "./checks.js";
import { classesView } from "./classes.js";
import { compareView } from "./compare.js";
import { damagedLedger, showDamage } from "./damage.js";
import { h } from "./elements.js";
import { ledgerView } from "./ledger.js";
import { tell, tellProgress, write } from "./live.js";
import { mapView } from "./map/view.js";
import { count } from "./numbers.js";
import { overviewView } from "./overview.js";
import { showCount } from "./picked.js";
import { shardsView } from "./shards.js";
import { ask, ENDED, outdated, REPORT, source } from "./source.js";
import { loadColumns, loadHeldOut, loadRows, state } from "./state.js";
import { trainingView } from "./training.js";

const VIEWS = {
  overview: overviewView,
  map: mapView,
  check: checksView,
  classes: classesView,
  shards: shardsView,
  training: trainingView,
  compare: compareView,
  basket: basketView,
  ledger: ledgerView,
};
// Those that a store without classes has no use for.
const OF_CLASSES = ["classes", "shards", "training", "compare"];
const POLL_MS = 400;
// How often to ask, once all is done, whether the store is still the same.
const IDLE_MS = 5000;
// The map is drawn again each time so many times more rows have places.
const GROWTH = 1.5;

// What the view that is shown returned: its refresh, if it can take new data in place.
let shown = null;

const there = (view) => Object.hasOwn(VIEWS, view) && !(state.overview.what && OF_CLASSES.includes(view));

function show(focus) {
  const view = there(state.view) ? state.view : "overview",
    main = document.getElementById("main");
  state.view = view;
  dropCharts();
  main.replaceChildren();
  for (const link of document.querySelectorAll("nav a"))
    if (link.hash === "#" + view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  const draw = view === "ledger" && !state.overview.ledger ? damagedLedger : VIEWS[view];
  shown = draw(main) || null;
  if (state.lost.length) showLost(main);
  main.dataset.view = view;
  leavePanel(view);
  keep();
  if (!focus) return;
  scrollTo({ top: 0, behavior: "instant" });
  main.focus({ preventScroll: true });
}

// A panel shows one view without the header, which comes with the first other one: it leads back.
function leavePanel(view) {
  const { view: own } = document.documentElement.dataset;
  if (own && own !== view) document.querySelector("header").hidden = false;
}

// What of the address is not in this tab; it is told once.
function showLost(main) {
  const names = state.lost.splice(0).map((name) => (name === "basket" ? "the basket" : `what was chosen as “${name}”`));
  const text = `Too long for the address, and not in this tab: ${names.join(", ")}.`;
  main.prepend(h("p", { id: "lost" }, text));
  tell(text);
}

// Links to views are the page's own: a frame of a notebook has no address that a browser could go to.
function followLinks() {
  for (const link of document.querySelectorAll("nav a, .skip"))
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      if (link.className === "skip") document.getElementById("main").focus();
      else go(link.hash.slice(1));
    });
  onOpen(() => show(true));
  addEventListener("popstate", () => {
    restore(false);
    show(true);
  });
}

function showWork(text) {
  const node = document.getElementById("work");
  if (node.textContent && !text) tell("Everything is computed.");
  else if (text) tellProgress(text);
  write(node, text);
}

function workText(stages) {
  const [name, stage] = Object.entries(stages).find(([, s]) => !s.ready) || [];
  if (!stage) return "";
  return name + (stage.total ? `: ${count(stage.done)} of ${count(stage.total)}` : " …");
}

// Take in what the server knows by now, and show it where the view has a use for it.
async function takeIn(stages) {
  const main = document.getElementById("main"),
    had = state.held;
  state.overview = await source.get("overview");
  showDamage();
  await loadColumns();
  if (!had && stages["held-out predictions"].ready) await loadHeldOut();
  const view = main.dataset.view;
  if (shown && shown.refresh) shown.refresh();
  else if (!had && state.held && (view === "classes" || view === "shards")) show(false);
  else if (view === "training" && stages["head path"].ready && !main.dataset.path) {
    show(false);
    main.dataset.path = "1";
  }
}

// Ask the server how far it is, and when all is done whether the store has changed.
async function follow() {
  let version = -1,
    rows = 0;
  for (;;) {
    const now = await ask("progress").catch(() => null);
    if (now === null) {
      write(document.getElementById("work"), outdated() ? "" : ENDED);
      if (!outdated()) tell(ENDED);
      return;
    }
    const all = Object.values(now.stages),
      read = now.stages.rows;
    state.stages = now.stages;
    showWork(workText(now.stages));
    if (now.version !== version || (!read.ready && read.done > rows * GROWTH + 1)) {
      version = now.version;
      rows = read.done;
      await takeIn(now.stages);
    }
    const done = all.every((stage) => stage.ready);
    if (done) document.body.dataset.done = "1";
    await new Promise((next) => setTimeout(next, done ? IDLE_MS : POLL_MS));
  }
}

// What every view needs; false where it cannot be had, which the page then says.
async function load() {
  try {
    state.overview = await source.get("overview");
    await loadRows();
    return true;
  } catch (error) {
    document.getElementById("main").replaceChildren(h("p", { role: "alert" }, error.message));
    document.querySelector("nav").hidden = true;
    return false;
  }
}

async function begin() {
  if (!(await load())) return;
  const r = state.overview.report;
  document.getElementById("store").textContent = r.store;
  document.getElementById("root").textContent = "root " + r.root_digest.slice(0, 16);
  document.querySelector("header").hidden = Boolean(document.documentElement.dataset.view);
  if (REPORT) {
    state.stages = REPORT.progress.stages;
    await loadColumns();
    await loadHeldOut();
  }
  for (const link of document.querySelectorAll("nav a")) link.hidden = !there(link.hash.slice(1));
  showDamage();
  restore(true);
  show(false);
  showCount();
  followLinks();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(false));
  addEventListener("outdated", () => state.view === "basket" && show(false)); // it has a command to copy
  document.body.dataset.ready = "1";
  if (source.live) follow();
}

begin();
