// Elements, numbers in words, colours, charts.
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const percent = (x) => (x === null || x === undefined || Number.isNaN(x) ? "–" : (100 * x).toFixed(2) + " %");
const count = (x) => x.toLocaleString("en-US");
const short = (x) =>
  x === null || x === undefined || Number.isNaN(x)
    ? "–"
    : Number(x)
        .toPrecision(3)
        .replace(/\.?0+(e|$)/, "$1");
function bytes(n) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (n < 1000) return (unit === "B" ? n : n.toFixed(1)) + " " + unit;
    n /= 1000;
  }
  return n.toFixed(1) + " TB";
}

// A table: columns are [title, value of a row, is a number].
function table(caption, columns, rows, onRow) {
  return h(
    "table",
    { "aria-label": caption },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map(([title, , n]) => h("th", { class: n ? "n" : "", scope: "col" }, title)),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) => {
        const line = h(
          "tr",
          {},
          columns.map(([, value, n]) => h("td", { class: n ? "n" : "" }, value(row))),
        );
        if (onRow) onRow(line, row);
        return line;
      }),
    ),
  );
}
const scrolled = (inner, tall) =>
  h(
    "div",
    {
      class: tall ? "scroll tall" : "scroll",
      tabindex: "0",
      role: "region",
      "aria-label": inner.getAttribute("aria-label"),
    },
    inner,
  );
const card = (label, value) => h("div", { class: "card" }, h("b", {}, value), h("span", {}, label));

const PALETTE = [
  "#4e79a7",
  "#f28e2b",
  "#59a14f",
  "#e15759",
  "#76b7b2",
  "#b6992d",
  "#af7aa1",
  "#ff9da7",
  "#9c755f",
  "#8f9aa8",
];
const RAMP = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const classColour = (k, total) =>
  total <= PALETTE.length ? PALETTE[k] : `hsl(${(k * 137.508) % 360} 55% ${45 + (k % 3) * 10}%)`;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const charts = new Set();
function chart(node, label, option) {
  const made = echarts.init(node);
  charts.add(made);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", label);
  const text = css("--text"),
    line = css("--line");
  const axis = {
    axisLine: { lineStyle: { color: line } },
    axisLabel: { color: text },
    nameTextStyle: { color: text },
    splitLine: { lineStyle: { color: line } },
  };
  made.setOption({
    animation: false,
    textStyle: { color: text, fontFamily: "system-ui, sans-serif" },
    grid: { left: 12, right: 18, top: 36, bottom: 30, containLabel: true },
    legend: { type: "scroll", top: 4, textStyle: { color: text }, pageTextStyle: { color: text }, pageIconColor: text },
    tooltip: {
      renderMode: "richText",
      confine: true,
      backgroundColor: css("--panel"),
      borderColor: line,
      textStyle: { color: text },
    },
    ...option,
    xAxis: option.xAxis && { ...axis, nameLocation: "middle", nameGap: 26, ...option.xAxis },
    yAxis: option.yAxis && { ...axis, ...option.yAxis },
  });
  return made;
}
function dropCharts() {
  for (const made of charts) made.dispose();
  charts.clear();
}
addEventListener("resize", () => charts.forEach((made) => made.resize()));
