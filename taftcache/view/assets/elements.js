// Elements of the page.

// An element with attributes (on… are listeners) and children: nodes, texts, lists of them; null is left out.
export function h(tag, attributes = {}, ...children) {
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

// A table: columns are [title, value of a row, is a number]; onRow gets each line with its row.
export function table(caption, columns, rows, onRow) {
  const heads = columns.map(([title, , number]) => h("th", { class: number ? "n" : "", scope: "col" }, title));
  const lines = rows.map((row) => {
    const line = h(
      "tr",
      {},
      columns.map(([, value, number]) => h("td", { class: number ? "n" : "" }, value(row))),
    );
    if (onRow) onRow(line, row);
    return line;
  });
  return h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, lines));
}

// A table that scrolls by itself, also by keyboard.
export const scrolled = (inner, tall) =>
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

export const card = (label, value) => h("div", { class: "card" }, h("b", {}, value), h("span", {}, label));

// A list to choose from: options are [value, text]; change gets the value chosen.
export const choice = (id, label, options, value, change) =>
  h(
    "label",
    {},
    label,
    h(
      "select",
      { id, onchange: (e) => change(e.target.value) },
      options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)),
    ),
  );

// A text marked as right or wrong, by more than its colour.
export const judgement = (right, text) => h("span", { class: right ? "good" : "bad" }, (right ? "✓ " : "✗ ") + text);
