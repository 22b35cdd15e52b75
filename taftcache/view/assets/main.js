// Views by the address's fragment; the background work's progress; light and dark.
const VIEWS = {
  overview: overviewView,
  map: mapView,
  classes: classesView,
  shards: shardsView,
  training: trainingView,
  ledger: ledgerView,
};
let shownView = null;

function show(focus) {
  const only = document.documentElement.dataset.view;
  const [name, id] = (location.hash.slice(1) || only || "overview").split("/");
  const view = VIEWS[name] ? name : "overview",
    main = document.getElementById("main");
  if (id !== undefined) {
    const row = state.ids.indexOf(decodeURIComponent(id));
    if (row >= 0) state.selected = row;
  }
  dropCharts();
  main.replaceChildren();
  for (const link of document.querySelectorAll("nav a"))
    if (link.hash === "#" + view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  shownView = VIEWS[view](main) || null;
  main.dataset.view = view;
  if (focus) main.focus();
}

function tellWork(stages) {
  const going = Object.entries(stages).find(([, s]) => !s.ready);
  document.getElementById("work").textContent = !going
    ? ""
    : going[0] + (going[1].total ? `: ${count(going[1].done)} of ${count(going[1].total)}` : " …");
}

async function follow() {
  let version = -1,
    columns = 0;
  for (;;) {
    const now = await ask("progress").catch(() => null);
    if (now === null) {
      document.getElementById("work").textContent = "The server has ended; start taftcache view again.";
      return;
    }
    state.stages = now.stages;
    tellWork(now.stages);
    const rows = now.stages.rows,
      done = Object.values(now.stages).every((s) => s.ready);
    const fresh = now.version !== version,
      grown = !rows.ready && rows.done > columns * 1.5 + 1;
    if (fresh || grown) {
      version = now.version;
      columns = rows.done;
      state.overview = await source.get("overview");
      await loadColumns();
      const had = state.held;
      if (!state.held && now.stages["held-out predictions"].ready) await loadHeldOut();
      const view = document.getElementById("main").dataset.view;
      if (shownView && shownView.refresh) shownView.refresh();
      else if (
        (!had && state.held && (view === "classes" || view === "shards")) ||
        (view === "training" && now.stages["head path"].ready && !document.getElementById("main").dataset.path)
      ) {
        show(false);
        if (view === "training") document.getElementById("main").dataset.path = "1";
      }
    }
    if (done) {
      document.body.dataset.done = "1";
      return;
    }
    await new Promise((next) => setTimeout(next, 400));
  }
}

async function begin() {
  state.overview = await source.get("overview");
  const r = state.overview.report;
  document.getElementById("store").textContent = r.store;
  document.getElementById("root").textContent = "root " + r.root_digest.slice(0, 16);
  if (document.documentElement.dataset.view) document.querySelector("header").hidden = true;
  await loadRows();
  if (REPORT) {
    state.stages = REPORT.progress.stages;
    await loadColumns();
    await loadHeldOut();
  }
  show(false);
  addEventListener("hashchange", () => show(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(false));
  document.body.dataset.ready = "1";
  if (source.live) follow();
}
begin();
