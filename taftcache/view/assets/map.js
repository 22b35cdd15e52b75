// The map of the samples, its filters, lasso and table.
const LISTED = 200;
const COLOURS = [
  ["class", "class"],
  ["shard", "shard"],
  ["mean", "prediction (composed)"],
  ["error", "right or wrong (composed)"],
  ["margin", "margin (composed)"],
  ["moved", "influence (bound)"],
  ["norm", "norm of the vector"],
];

// The rows in groups of one colour, each a series: [name, colour, rows].
function groups(rows) {
  const column = state.columns[state.colour],
    K = state.overview.report.classes.length;
  if (state.colour === "class" || state.colour === "shard" || state.colour === "mean") {
    const of = state.colour === "class" ? state.label : state.colour === "shard" ? state.shard : column;
    if (!of) return [["not known yet", css("--quiet"), rows]];
    const name = state.colour === "shard" ? shardName : className;
    const total = state.colour === "shard" ? state.overview.shards.length : K;
    return split(rows, (row) => of[row]).map(([k, part]) =>
      k === UNKNOWN ? ["unknown", css("--quiet"), part] : [name(k), classColour(k, total), part],
    );
  }
  if (state.colour === "error") {
    const mean = state.columns.mean;
    if (!mean) return [["not known yet", css("--quiet"), rows]];
    const kinds = [
      ["unknown", css("--quiet")],
      ["right", PALETTE[0]],
      ["wrong", PALETTE[3]],
    ];
    return split(rows, (row) => (mean[row] === UNKNOWN ? 0 : mean[row] === state.label[row] ? 1 : 2)).map(
      ([k, part]) => [...kinds[k], part],
    );
  }
  if (!column) return [["not known yet", css("--quiet"), rows]];
  const sorted = Float32Array.from(rows, (row) => column[row])
    .filter((v) => !Number.isNaN(v))
    .sort();
  const edges = RAMP.map((_, k) => sorted[Math.floor((k * (sorted.length - 1)) / RAMP.length)]);
  const bin = (v) => {
    let k = 0;
    while (k + 1 < edges.length && v >= edges[k + 1]) k++;
    return k;
  };
  return split(rows, (row) => (Number.isNaN(column[row]) ? UNKNOWN : bin(column[row]))).map(([k, part]) =>
    k === UNKNOWN ? ["unknown", css("--quiet"), part] : ["≥ " + short(edges[k]), RAMP[k], part],
  );
}
function split(rows, key) {
  const parts = new Map();
  for (const row of rows) {
    const k = key(row);
    if (!parts.has(k)) parts.set(k, []);
    parts.get(k).push(row);
  }
  return [...parts].sort((a, b) => a[0] - b[0]);
}

function mapView(main) {
  const total = state.ids.length;
  const choose = (name, label, options, value, change) =>
    h(
      "label",
      {},
      label,
      h(
        "select",
        { id: name, onchange: (e) => change(e.target.value) },
        options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)),
      ),
    );
  const filter = (key) => (value) => {
    state.filters[key] = value;
    state.lasso = null;
    draw();
  };
  const lassoButton = h(
    "button",
    { id: "lasso", type: "button", "aria-pressed": "false", onclick: () => lasso(true) },
    "Lasso",
  );
  const node = h("div", { class: "map", id: "map", tabindex: "0" });
  const list = h("div", { id: "list" }),
    side = h("aside", { class: "side", "aria-label": "Sample" });
  const said = h("p", { id: "chosen", role: "status", "aria-live": "polite" });
  main.append(
    h("h1", {}, "Map of the samples"),
    h("p", { class: "quiet", id: "axes" }),
    h(
      "div",
      { class: "tools" },
      choose("colour", "Colour", COLOURS, state.colour, (v) => {
        state.colour = v;
        draw();
      }),
      choose(
        "space",
        "Places",
        [
          ["pca", "principal axes"],
          ["neighbours", "neighbour embedding"],
        ],
        state.space,
        (v) => {
          state.space = v;
          state.lasso = null;
          draw();
        },
      ),
      choose(
        "class",
        "Class",
        [["", "all"], ...state.overview.report.classes.map((c, k) => [k, c])],
        state.filters.class,
        filter("class"),
      ),
      choose(
        "shard",
        "Shard",
        [["", "all"], ...state.overview.shards.map((s, k) => [k, s.name])],
        state.filters.shard,
        filter("shard"),
      ),
      choose(
        "only",
        "Show",
        [
          ["", "all"],
          ["wrong", "wrong only"],
          ["right", "right only"],
        ],
        state.filters.only,
        filter("only"),
      ),
      h(
        "label",
        {},
        "Id contains",
        h("input", {
          id: "search",
          type: "search",
          value: state.filters.text,
          autocomplete: "off",
          oninput: (e) => filter("text")(e.target.value),
          onkeydown: (e) => {
            if (e.key === "Enter" && listed.length) select(listed[0]);
          },
        }),
      ),
      lassoButton,
      h("button", { id: "clear", type: "button", onclick: clear }, "Clear"),
    ),
    h(
      "div",
      { class: "atlas" },
      h(
        "div",
        {},
        node,
        h(
          "p",
          { class: "quiet" },
          "Wheel or + − to zoom, drag or arrow keys to move, 0 to see all; the lasso or the filters choose samples for the table.",
        ),
        said,
        list,
      ),
      side,
    ),
  );
  const none = { show: false },
    bare = { type: "value", scale: true, axisLine: none, axisTick: none, axisLabel: none, splitLine: none };
  const made = chart(node, "", {
    grid: { left: 8, right: 8, top: 40, bottom: 8, containLabel: true },
    xAxis: bare,
    yAxis: bare,
    dataZoom: [
      { type: "inside", xAxisIndex: 0, filterMode: "none" },
      { type: "inside", yAxisIndex: 0, filterMode: "none" },
    ],
    // xAxisIndex ties the lasso to the axes: it stays where it was drawn when the map moves.
    toolbox: { show: false },
    brush: {
      toolbox: [],
      xAxisIndex: 0,
      yAxisIndex: 0,
      seriesIndex: [],
      brushMode: "single",
      brushStyle: { borderWidth: 2, color: "rgba(90,150,230,.14)", borderColor: css("--accent") },
    },
    series: [],
  });
  let listed = [],
    shown = [],
    lassoing = false,
    last = null;

  function draw() {
    const [x, y] = places(),
      rows = x ? passing().filter((row) => !Number.isNaN(x[row])) : [];
    shown = groups(rows);
    const size = rows.length > 30000 ? 2 : rows.length > 5000 ? 3 : 5;
    const series = shown.map(([name, colour, part], k) => {
      const data = new Float32Array(2 * part.length);
      part.forEach((row, i) => {
        data[2 * i] = x[row];
        data[2 * i + 1] = y[row];
      });
      return {
        id: "g" + k,
        name,
        type: "scatter",
        data,
        dimensions: ["x", "y"],
        large: true,
        largeThreshold: 500,
        progressive: 0,
        symbolSize: size,
        itemStyle: { color: colour, opacity: 0.85 },
      };
    });
    if (state.selected !== null && x && !Number.isNaN(x[state.selected]))
      series.push({
        id: "selected",
        name: "chosen sample",
        type: "scatter",
        symbolSize: 18,
        z: 5,
        silent: true,
        itemStyle: { color: "transparent", borderColor: css("--text"), borderWidth: 3 },
        data: [[x[state.selected], y[state.selected]]],
      });
    made.setOption(
      {
        tooltip: {
          formatter: (p) => {
            const row = at(p);
            return row === null ? "" : state.ids[row] + "\n" + className(state.label[row]);
          },
        },
        legend: { data: shown.map(([name]) => name) },
        series,
      },
      { replaceMerge: ["series"] },
    );
    if (!state.lasso) made.dispatchAction({ type: "brush", areas: [] });
    node.setAttribute(
      "aria-label",
      `Map of ${count(rows.length)} samples, coloured by ${state.colour}; the table below lists them.`,
    );
    node.dataset.points = rows.length;
    const places_known = x ? rows.length : 0,
      ev = state.overview.explained;
    document.getElementById("axes").textContent =
      state.space === "neighbours"
        ? state.columns.nx
          ? "Neighbours stay together (t-SNE of a part of the rows, the others between their nearest of those); distances far apart mean nothing."
          : "The neighbour embedding is being made; principal axes meanwhile."
        : `Each point is a sample: ${state.overview.vectors}, along the two principal axes` +
          (ev.length ? ` (${percent(ev[0])} and ${percent(ev[1] ?? 0)} of the variance).` : ".") +
          (places_known < total && state.columns.x === undefined ? " Being read." : "");
    tell(rows);
  }
  function at(p) {
    if (!/^g\d+$/.test(p.seriesId || "")) return null;
    return shown[+p.seriesId.slice(1)][2][p.dataIndex];
  }
  function tell(rows) {
    listed = chosen(rows);
    const { mean, margin, moved } = state.columns;
    said.textContent =
      `${count(listed.length)} of ${count(total)} samples` +
      (state.lasso ? " inside the lasso" : "") +
      (listed.length > LISTED ? `; the first ${LISTED} are listed` : "");
    said.dataset.count = listed.length;
    list.replaceChildren(
      scrolled(
        table(
          "Samples",
          [
            [
              "sample",
              (row) => h("button", { class: "link", type: "button", onclick: () => select(row) }, state.ids[row]),
            ],
            ["class", (row) => className(state.label[row])],
            ["shard", (row) => shardName(state.shard[row])],
            [
              "composed",
              (row) =>
                mean && mean[row] !== UNKNOWN
                  ? h(
                      "span",
                      { class: mean[row] === state.label[row] ? "good" : "bad" },
                      (mean[row] === state.label[row] ? "✓ " : "✗ ") + className(mean[row]),
                    )
                  : "–",
            ],
            ["margin", (row) => short(margin && margin[row]), true],
            ["influence ≤", (row) => short(moved && moved[row]), true],
          ],
          listed.slice(0, LISTED),
          (line, row) => line.setAttribute("aria-selected", row === state.selected),
        ),
        true,
      ),
      h("p", {}, h("button", { type: "button", onclick: save }, "Save the ids as a file")),
    );
  }
  function save() {
    const link = h("a", {
      href: URL.createObjectURL(new Blob([listed.map((row) => state.ids[row]).join("\n") + "\n"])),
      download: "ids.txt",
    });
    link.click();
  }
  function select(row) {
    state.selected = row;
    history.replaceState(null, "", "#map/" + encodeURIComponent(state.ids[row]));
    draw();
    showSample(side, state.ids[row], select);
  }
  function lasso(on) {
    lassoing = on;
    last = null;
    lassoButton.setAttribute("aria-pressed", on);
    made.dispatchAction({
      type: "takeGlobalCursor",
      key: "brush",
      brushOption: on ? { brushType: "polygon", brushMode: "single" } : { brushType: false },
    });
  }
  function clear() {
    state.lasso = null;
    state.filters = { class: "", shard: "", only: "", text: "" };
    for (const id of ["class", "shard", "only", "search"]) document.getElementById(id).value = "";
    lasso(false);
    draw();
  }
  // The library takes a line that ends where it began for a click and drops it; closing a lasso is what people do.
  const drawn = (event) => event.areas.find((one) => one.coordRange && one.coordRange.length > 2);
  made.on("brush", (event) => {
    if (lassoing) last = drawn(event) || last;
  });
  made.on("brushEnd", (event) => {
    if (!lassoing) return;
    const area = drawn(event) || last;
    lasso(false);
    state.lasso = area ? area.coordRange : null;
    if (area && !drawn(event))
      made.dispatchAction({
        type: "brush",
        areas: [{ brushType: "polygon", xAxisIndex: 0, yAxisIndex: 0, coordRange: state.lasso }],
      });
    tell(shown.flatMap(([, , part]) => part).sort((a, b) => a - b));
  });
  made.on("click", (p) => {
    const row = at(p);
    if (row !== null) select(row);
  });
  node.addEventListener("keydown", (event) => {
    const [zx, zy] = made.getOption().dataZoom,
      keys = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const move = (zoom, by, scale) => {
      const span = Math.min(100, (zoom.end - zoom.start) * scale),
        middle = (zoom.start + zoom.end) / 2 + by * span * 0.15;
      const start = Math.min(Math.max(middle - span / 2, 0), 100 - span);
      return { start, end: start + span };
    };
    const scale = { "+": 0.7, "=": 0.7, "-": 1 / 0.7, 0: 1e9 }[event.key];
    if (!keys[event.key] && !scale) return;
    const [dx, dy] = keys[event.key] || [0, 0];
    made.dispatchAction({
      type: "dataZoom",
      batch: [
        { dataZoomIndex: 0, ...move(zx, dx, scale || 1) },
        { dataZoomIndex: 1, ...move(zy, dy, scale || 1) },
      ],
    });
    event.preventDefault();
  });
  if (state.selected === null) side.append(h("p", { class: "quiet" }, "Choose a sample on the map or in the table."));
  else showSample(side, state.ids[state.selected], select);
  draw();
  return {
    refresh: () => {
      if (!lassoing) draw();
    },
  };
}
