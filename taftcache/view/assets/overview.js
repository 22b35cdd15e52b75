// What the store holds.
function overviewView(main) {
  const r = state.overview.report,
    a = r.activations,
    s = a.sampled,
    b = r.identity.backbone;
  const q = s.norm_quantiles;
  main.append(
    h("h1", {}, "Overview"),
    h(
      "div",
      { class: "cards" },
      card("training rows", count(r.rows)),
      card("held-out rows", count(r.held_out_rows)),
      card("classes", count(r.classes.length)),
      card("training shards", count(r.shards.filter((x) => x.role === "train").length)),
      card("on disk", bytes(r.bytes)),
      card("as " + r.dtype, r.cut.shape.join(" × ")),
      card("ledger entries", count(r.ledger_entries)),
      card("forgotten", count(r.forgotten)),
    ),
    h(
      "p",
      {},
      `${b.model} (${b.weights}), cut at ${r.cut.start}; the ${r.cut.rows} of each sample are cached; tangent by ${r.tangent.path || "nothing yet"}` +
        (r.tangent.why ? ` (${r.tangent.why})` : "") +
        ".",
    ),
    h("p", { class: "mono quiet" }, "root " + r.root_digest),
    h("h2", {}, "Integrity"),
    h("p", {}, r.integrity.text),
    h("h2", {}, "Shards"),
    scrolled(
      table(
        "Shards",
        [
          ["shard", (x) => x.name],
          ["role", (x) => x.role],
          ["rows", (x) => count(x.rows), true],
          ["classes", (x) => x.classes, true],
          ["size", (x) => bytes(x.bytes), true],
          ["fewest / most of a class", (x) => `${x.fewest} / ${x.most}`, true],
          ["max |x|", (x) => short(x.max_abs), true],
          ["mean ‖x‖", (x) => short(x.mean_token_norm), true],
          ["digest", (x) => h("span", { class: "mono" }, x.digest.slice(0, 16))],
        ],
        r.shards,
      ),
    ),
  );
  const node = h("div", { class: "chart" });
  main.append(h("h2", {}, "Rows per class and shard"), node);
  const shards = r.shards,
    K = r.classes.length;
  chart(node, `Rows per class in ${shards.length} shards`, {
    xAxis: {
      type: "category",
      data: r.classes,
      axisLabel: { color: css("--text"), rotate: K > 12 ? 60 : 0, hideOverlap: true },
    },
    yAxis: { type: "value", name: "rows" },
    ...(K > 40 ? { dataZoom: [{ type: "inside" }] } : {}),
    series: shards.map((x, k) => ({
      name: x.name,
      type: "bar",
      stack: "all",
      color: classColour(k, shards.length),
      data: r.classes.map((_, c) => x.rows_per_class[c] || 0),
    })),
  });
  main.append(
    h("h2", {}, "Activations"),
    h(
      "p",
      {},
      `Of every value, gathered at extraction: max |x| ${short(a.gathered.max_abs)}, so values could be ${short(a.gathered.headroom)} times larger before ${r.dtype} overflows; mean norm ${short(a.gathered.mean_token_norm)}. NaN, infinities and overflow are refused at extraction.`,
    ),
    h(
      "p",
      {},
      `From a sample of ${count(s.rows)} of ${count(s.of)} samples: norms ${short(q["0"])} to ${short(q["100"])}, the middle one ${short(q["50"])}; ${s.outlier_channels} outlier channels; ${percent(s.zeros)} zeros, ${percent(s.subnormal)} too small for full precision, ${s.not_finite} not finite.`,
    ),
    scrolled(
      table(
        "Largest channels",
        [
          ["channel", (x) => x.channel],
          ["root mean square", (x) => short(x.rms), true],
          ["times the median", (x) => short(x.ratio), true],
        ],
        s.largest_channels,
      ),
    ),
  );
}
