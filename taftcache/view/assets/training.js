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
              m.privacy
                ? privacy(m)
                : m.converged === undefined
                  ? "the mean of the components"
                  : h("span", { class: m.converged ? "good" : "bad" }, m.converged ? "converged" : m.status),
          ],
        ],
        r.models,
      ),
    ),
  );
  const promised = r.models.filter((m) => m.privacy);
  if (promised.length)
    main.append(
      h(
        "p",
        {},
        `Private models are no solutions and have no certificate; their promise does not cover: ${promised[0].privacy.not_covered.join("; ")}. Nor does it cover this page, which shows the rows themselves.`,
      ),
    );
  const curves = trained.filter((m) => m.convergence && m.convergence.length > 1),
    node = h("div", { class: "chart" }),
    path = h("div", { class: "chart" });
  main.append(
    h(
      "div",
      { class: "columns" },
      h(
        "section",
        {},
        h("h2", {}, "Convergence: residual of the solver by pass"),
        curves.length
          ? node
          : h(
              "p",
              { class: "quiet" },
              "No curves: every solve here took one step (the exact inverse, or the closed form).",
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
      yAxis: { type: "log", axisLabel: { color: css("--text"), formatter: (v) => v.toExponential(0) } },
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
    const shown = p.flatMap((x) => [x.train, x.held_out]).filter((v) => v !== null);
    const here = {
      name: "λ of the store",
      type: "line",
      showSymbol: false,
      color: css("--text"),
      lineStyle: { type: "dashed" },
    };
    here.data = typeof now === "number" ? [Math.min(...shown), Math.max(...shown)].map((v) => [now, v]) : [];
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
      series: [line("held_out", "held out", 0), line("train", "training rows", 1), here],
    });
  }
}

// What a private model promises.
function privacy(m) {
  const p = m.privacy;
  return p.private
    ? `private: ε ${p.epsilon.toPrecision(4)}, δ ${p.delta}, ${p.relation}`
    : "noise of a seed: not private";
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
