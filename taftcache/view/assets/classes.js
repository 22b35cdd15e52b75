// Confusion and accuracy of each class, by model.
function classesView(main) {
  if (!state.held) {
    main.append(h("h1", {}, "Classes"), waiting("held-out predictions"));
    return;
  }
  const names = Object.keys(state.held.models),
    classes = state.overview.report.classes,
    K = classes.length;
  if (!names.includes(state.model)) state.model = names[0];
  const place = h("div", {});
  main.append(
    h("h1", {}, "Classes"),
    h(
      "div",
      { class: "tools" },
      h(
        "label",
        {},
        "Model",
        h(
          "select",
          {
            id: "model",
            onchange: (e) => {
              state.model = e.target.value;
              draw();
            },
          },
          names.map((name) => h("option", { value: name, selected: name === state.model }, title(name))),
        ),
      ),
    ),
    place,
  );
  const shown = names.filter((name) => !name.startsWith("components/"));
  const results = Object.fromEntries(names.map((name) => [name, judged(state.held.models[name])]));
  function draw() {
    const it = results[state.model];
    dropCharts();
    const node = h("div", { class: "chart" });
    node.style.height = Math.min(560, Math.max(320, 60 + 26 * Math.min(K, 20))) + "px";
    const pairs = [];
    for (let y = 0; y < K; y++)
      for (let p = 0; p < K; p++) if (y !== p && it.counts[y * K + p]) pairs.push([y, p, it.counts[y * K + p]]);
    pairs.sort((a, b) => b[2] - a[2]);
    place.replaceChildren(
      h(
        "p",
        {},
        h("span", { class: "big", id: "accuracy" }, percent(it.accuracy)),
        ` of ${count(it.rows)} held-out rows: ${title(state.model)}`,
      ),
      h(
        "div",
        { class: "columns" },
        h("section", {}, h("h2", {}, "Confusion"), node),
        h(
          "section",
          {},
          h("h2", {}, "Most frequent confusions"),
          pairs.length
            ? scrolled(
                table(
                  "Confusions",
                  [
                    ["class", (x) => className(x[0])],
                    ["taken for", (x) => className(x[1])],
                    ["rows", (x) => x[2], true],
                  ],
                  pairs.slice(0, 40),
                ),
                true,
              )
            : h("p", {}, "None."),
        ),
      ),
      h("h2", {}, "Accuracy of each class"),
      scrolled(
        table(
          "Accuracy of each class by model",
          [
            ["class", (k) => classes[k]],
            ["training rows", (k) => count(state.overview.report.rows_per_class[classes[k]]), true],
            ["held out", (k) => it.of[k], true],
            ...[...new Set([...shown, state.model])].map((name) => [
              title(name),
              (k) => percent(results[name].of[k] ? results[name].counts[k * K + k] / results[name].of[k] : NaN),
              true,
            ]),
          ],
          [...Array(K).keys()].sort(
            (a, b) => it.counts[a * K + a] / (it.of[a] || 1) - it.counts[b * K + b] / (it.of[b] || 1),
          ),
        ),
        true,
      ),
    );
    const cells = [];
    for (let y = 0; y < K; y++)
      for (let p = 0; p < K; p++) if (it.counts[y * K + p]) cells.push([p, y, it.counts[y * K + p] / it.of[y]]);
    chart(
      node,
      `Confusion of ${title(state.model)}: ${pairs.length} pairs of classes are taken for one another; the table beside lists them`,
      {
        grid: { left: 8, right: 12, top: 8, bottom: 30, containLabel: true },
        xAxis: {
          type: "category",
          data: classes,
          name: "predicted",
          splitLine: { show: false },
          axisLabel: { color: css("--text"), hideOverlap: true },
        },
        yAxis: {
          type: "category",
          data: classes,
          inverse: true,
          splitLine: { show: false },
          axisLabel: { color: css("--text"), hideOverlap: true },
        },
        visualMap: { show: false, min: 0, max: 1, inRange: { color: [css("--panel"), css("--fill")] } },
        tooltip: {
          renderMode: "richText",
          formatter: (p) =>
            `${className(p.data[1])} taken for ${className(p.data[0])}: ${percent(p.data[2])} of its rows`,
        },
        series: [
          {
            type: "heatmap",
            data: cells,
            progressive: 0,
            label: { show: K <= 15, color: css("--text"), formatter: (p) => it.counts[p.data[1] * K + p.data[0]] },
          },
        ],
      },
    );
  }
  draw();
}
