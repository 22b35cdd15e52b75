// Shards taken out of the composition, and what each contributes.
function shardsView(main) {
  if (!state.held || !state.held.components.length) {
    main.append(h("h1", {}, "Shards"), waiting("held-out predictions"));
    return;
  }
  const names = state.held.components,
    S = names.length;
  const range = h("input", {
    id: "subtract",
    type: "range",
    min: 0,
    max: S - 1,
    step: 1,
    value: Math.min(state.out.size, S - 1),
    "aria-describedby": "composed",
    oninput: (e) => {
      state.out = new Set(names.slice(S - +e.target.value));
      update();
    },
  });
  const shown = h("p", { id: "composed", role: "status", "aria-live": "polite" });
  const boxes = h("div", { class: "checks" });
  const alone = h("div", { class: "chart" }),
    curve = h("div", { class: "chart" });
  main.append(
    h("h1", {}, "Shards"),
    h(
      "p",
      {},
      "A mean of components is the component of the mean: taking shards out of the composition needs no training, only a sum of logits.",
    ),
    h("div", { class: "tools" }, h("label", {}, "Shards subtracted, the last first", range)),
    shown,
    h("h2", {}, "In the composition"),
    boxes,
    h(
      "div",
      { class: "columns" },
      h("section", {}, h("h2", {}, "Accuracy as shards are subtracted"), curve),
      h("section", {}, h("h2", {}, "What each shard contributes"), alone),
    ),
    h("p", { class: "quiet" }, "The same numbers in the terminal: taftcache evaluate STORE --without SHARD"),
  );
  let turn = 0;
  async function update() {
    range.value = state.out.size;
    range.setAttribute("aria-valuetext", `${state.out.size} of ${S} shards subtracted`);
    boxes.replaceChildren(
      ...names.map((name) =>
        h(
          "label",
          {},
          h("input", {
            type: "checkbox",
            value: name,
            checked: !state.out.has(name),
            onchange: (e) => {
              if (e.target.checked) state.out.delete(name);
              else if (state.out.size < S - 1) state.out.add(name);
              update().then(() => {
                const again = boxes.querySelector(`input[value="${CSS.escape(name)}"]`);
                if (again) again.focus();
              });
            },
          }),
          name,
        ),
      ),
    );
    const mine = ++turn,
      out = names.filter((name) => state.out.has(name));
    try {
      const it = judged(await source.compose(out));
      if (mine !== turn) return;
      shown.replaceChildren(
        h("span", { class: "big", id: "accuracy" }, percent(it.accuracy)),
        ` of ${count(it.rows)} held-out rows right, mean of ${S - out.length} of ${S} components`,
      );
      shown.dataset.right = it.right;
      shown.dataset.rows = it.rows;
    } catch (error) {
      shown.textContent = error.message;
    }
  }
  async function curves() {
    const fewer = [],
      without = [];
    for (let k = 0; k < S; k++) fewer.push(judged(await source.compose(names.slice(S - k))).accuracy);
    for (const name of names) without.push(S > 1 ? judged(await source.compose([name])).accuracy : NaN);
    if (!curve.isConnected) return;
    chart(curve, `Accuracy falls from ${percent(fewer[0])} with all shards to ${percent(fewer[S - 1])} with one`, {
      xAxis: { type: "value", name: "shards subtracted", minInterval: 1, max: S - 1 },
      yAxis: {
        type: "value",
        scale: true,
        axisLabel: { formatter: (v) => (100 * v).toFixed(1) + " %", color: css("--text") },
      },
      tooltip: { trigger: "axis", renderMode: "richText", valueFormatter: percent },
      series: [{ name: "composed", type: "line", data: fewer.map((v, k) => [k, v]), color: PALETTE[0], symbolSize: 7 }],
    });
    const own = names.map((name) => judged(state.held.models["components/" + name]).accuracy);
    chart(
      alone,
      `Accuracy of each shard's component alone, ${percent(Math.min(...own))} to ${percent(Math.max(...own))}, and of the composition without it`,
      {
        xAxis: { type: "category", data: names, name: "shard" },
        yAxis: {
          type: "value",
          scale: true,
          axisLabel: { formatter: (v) => (100 * v).toFixed(1) + " %", color: css("--text") },
        },
        tooltip: { trigger: "axis", renderMode: "richText", valueFormatter: percent },
        series: [
          { name: "alone", type: "bar", data: own, color: PALETTE[0] },
          { name: "all but it", type: "bar", data: without, color: PALETTE[1] },
        ],
      },
    );
  }
  update();
  curves();
}
