// Certificates, convergence, the path of the head; the ledger.
function trainingView(main) {
  const r = state.overview.report,
    trained = r.models.filter((m) => m.certificate);
  main.append(h("h1", {}, "Training"));
  if (!r.models.length) {
    main.append(h("p", {}, "Nothing is trained yet: taftcache train STORE."));
    return;
  }
  main.append(
    h("h2", {}, "Certificates"),
    h(
      "p",
      {},
      "Each is a float64 gradient recomputed from the rows. F is λ-strongly convex, so ‖Δw − Δw*‖ ≤ ‖∇F‖/λ and F − F* ≤ ‖∇F‖²/2λ.",
    ),
    scrolled(
      table(
        "Certificates",
        [
          ["model", (m) => title(m.name)],
          ["rows", (m) => (m.rows ? count(m.rows) : "–"), true],
          ["‖Δw‖", (m) => short(m.norm), true],
          ["‖∇F‖ / start", (m) => (m.certificate ? m.certificate.relative_gradient.toExponential(1) : "–"), true],
          ["‖Δw−Δw*‖ ≤", (m) => (m.certificate ? m.certificate.distance_bound.toExponential(1) : "–"), true],
          ["F − F* ≤", (m) => (m.certificate ? m.certificate.gap_bound.toExponential(1) : "–"), true],
          ["passes", (m) => (m.stats && m.stats.passes) || "–", true],
          [
            "how it ended",
            (m) =>
              m.converged === undefined
                ? "the mean of the components"
                : h("span", { class: m.converged ? "good" : "bad" }, m.converged ? "converged" : m.status),
          ],
        ],
        r.models,
      ),
    ),
  );
  const curves = trained.filter((m) => m.convergence && m.convergence.length),
    node = h("div", { class: "chart" }),
    path = h("div", { class: "chart" });
  main.append(
    h(
      "div",
      { class: "columns" },
      h(
        "section",
        {},
        h("h2", {}, "Convergence"),
        curves.length
          ? node
          : h(
              "p",
              { class: "quiet" },
              "No curves: the solves took one step, or their store was trained before curves were kept.",
            ),
      ),
      h(
        "section",
        {},
        h("h2", {}, "Regularisation path of the head"),
        state.overview.path.length ? path : waiting("head path"),
      ),
    ),
  );
  if (curves.length)
    chart(node, `Residual by pass of ${curves.length} solves`, {
      xAxis: { type: "value", name: "passes over the rows", minInterval: 1 },
      yAxis: { type: "log", name: "residual / start" },
      tooltip: { trigger: "axis", renderMode: "richText" },
      series: curves.map((m, k) => ({
        name: title(m.name),
        type: "line",
        data: m.convergence,
        color: classColour(k, curves.length),
        symbolSize: 6,
      })),
    });
  if (state.overview.path.length) {
    const p = state.overview.path,
      now = state.overview.objective.ridge;
    const line = (key, name, k) => ({
      name,
      type: "line",
      showSymbol: false,
      color: PALETTE[k],
      data: p.filter((x) => x[key] !== null).map((x) => [x.ridge, x[key]]),
    });
    const made = line("held_out", "held out", 0);
    if (now)
      made.markLine = {
        symbol: "none",
        silent: true,
        lineStyle: { color: css("--text") },
        label: { formatter: "λ of the store", color: css("--text") },
        data: [{ xAxis: now }],
      };
    chart(path, "Accuracy of the head alone by λ, on training and held-out rows", {
      grid: { left: 12, right: 24, top: 50, bottom: 30, containLabel: true },
      xAxis: {
        type: "log",
        name: "λ",
        min: p[0].ridge,
        max: p[p.length - 1].ridge,
        axisLabel: { color: css("--text"), formatter: (v) => v.toExponential(0) },
      },
      yAxis: {
        type: "value",
        scale: true,
        axisLabel: { formatter: (v) => (100 * v).toFixed(0) + " %", color: css("--text") },
      },
      tooltip: { trigger: "axis", renderMode: "richText", valueFormatter: percent },
      series: [made, line("train", "training rows", 1)],
    });
  }
}

function ledgerView(main) {
  const entries = state.overview.ledger;
  main.append(
    h("h1", {}, "Ledger"),
    h(
      "p",
      {},
      entries.length
        ? `${entries.length} entries in one chain of digests, the newest first; checked when this was read.`
        : "Empty: nothing was forgotten yet.",
    ),
  );
  for (const entry of [...entries].reverse())
    main.append(
      h(
        "details",
        {},
        h(
          "summary",
          {},
          `${entry.seq}. ${entry.time || ""} ${entry.event || ""}` +
            (entry.samples ? `: ${entry.samples} samples` : ""),
        ),
        h("pre", { class: "mono" }, JSON.stringify(entry, null, 2)),
      ),
    );
}
