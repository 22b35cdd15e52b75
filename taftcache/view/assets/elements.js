// Elements of the page.
import { tellProgress } from "./live.js";
import { byLines, controls, oneTabStop, sayHidden, watchColumns } from "./lines.js";

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

// How tables are sorted, by caption: [title of the column, "up" or "down"]. The address keeps it.
export const sorts = new Map();
const listeners = [];
export const onSort = (listener) => listeners.push(listener);

// A table: columns are [title, value of a row, is a number, what of a row to sort by (else its text)]; onRow gets each
// line with its row. A header sorts all rows, of which the first `most` are shown.
export function table(caption, columns, rows, onRow, most = Infinity) {
  const body = h("tbody"),
    heads = columns.map((column) => header(column, turn)),
    setTabStop = oneTabStop(body);
  function turn([title, , number]) {
    const [by, way] = sorts.get(caption) || [],
      first = number ? "down" : "up";
    const next = by !== title ? first : way === first ? (first === "up" ? "down" : "up") : null;
    if (next) sorts.set(caption, [title, next]);
    else sorts.delete(caption);
    fill();
    for (const listener of listeners) listener(caption);
  }
  function fill() {
    const [by, way] = sorts.get(caption) || [];
    columns.forEach(([title], k) => {
      if (title === by) heads[k].setAttribute("aria-sort", way === "up" ? "ascending" : "descending");
      else heads[k].removeAttribute("aria-sort");
    });
    body.replaceChildren(...sorted(caption, columns, rows).slice(0, most).map(line));
    setTabStop();
  }
  function line(row) {
    const cells = columns.map(([, value, number]) => h("td", { class: number ? "n" : "" }, h("div", {}, value(row))));
    const made = h("tr", {}, cells);
    if (onRow) onRow(made, row);
    return made;
  }
  fill();
  return h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, heads)), body);
}

// A column without a title does not sort.
function header(column, turn) {
  const [title, , number] = column,
    sort = title && button(title, () => turn(column), { class: "sort" });
  return h("th", { class: number ? "n" : "", scope: "col" }, sort);
}

const inOrder = new Intl.Collator("en", { numeric: true }).compare;
const textOf = (value) => (value instanceof Node ? value.textContent : String(value ?? ""));

// The rows of a table as its header has them; what is not known comes last, either way.
export function sorted(caption, columns, rows) {
  const [by, way] = sorts.get(caption) || [],
    column = columns.find(([title]) => title === by);
  if (!column) return rows;
  const [, value, number, key] = column,
    sign = way === "up" ? 1 : -1;
  const keys = rows.map((row) => (key ? key(row) : number ? asNumber(textOf(value(row))) : textOf(value(row))));
  const unknown = (v) => v === null || v === undefined || Number.isNaN(v);
  const compare = typeof keys.find((v) => !unknown(v)) === "string" ? inOrder : (a, b) => a - b;
  return [...rows.keys()]
    .sort((a, b) => unknown(keys[a]) - unknown(keys[b]) || sign * compare(keys[a], keys[b]) || a - b)
    .map((k) => rows[k]);
}

const asNumber = (text) => Number.parseFloat(text.replaceAll(",", ""));

// A table that scrolls by itself, also by keyboard.
export function scrolled(inner, tall) {
  const region = h(
    "div",
    {
      class: tall ? "scroll tall" : "scroll",
      tabindex: "0",
      role: "region",
      "aria-label": inner.getAttribute("aria-label"),
      onkeydown: byLines,
      onscroll: () => sayHidden(region),
    },
    inner,
  );
  watchColumns(region, inner);
  return region;
}

// Put another table into the region of one before, where it stays scrolled, and at the same line by keyboard.
export function replaceTable(region, inner) {
  const { activeElement: from } = document,
    line = region.contains(from) ? from.closest("tbody tr") : null;
  region.replaceChildren(inner);
  watchColumns(region, inner);
  const lines = inner.tBodies[0].rows;
  if (!line || !lines.length) return;
  const to = lines[Math.min(line.rowIndex, lines.length) - 1]; // the header's is 0
  controls(to)[controls(line).indexOf(from)]?.focus({ preventScroll: true });
}

export const button = (text, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, text);

// A button that looks like a link.
export const link = (text, onclick, attributes = {}) => button(text, onclick, { class: "link", ...attributes });

export const section = (title, ...parts) => h("section", {}, h("h2", {}, title), parts);

// A paragraph that stands back.
export const quiet = (text, attributes = {}) => h("p", { class: "quiet", ...attributes }, text);

// What choice() takes to choose one of some names by its number, or all.
export const oneOf = (names) => [["", "all"], ...names.map((name, k) => [k, name])];

// That something is being made, with a bar as far as it is known how far.
export function working(text, done, total) {
  tellProgress(text);
  return [quiet(text), h("progress", { "aria-label": "being made", ...(total ? { max: total, value: done } : {}) })];
}

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

// Below a table of verdicts: what "perhaps" means, where one of them says so.
export const perhapsNote = (saw) =>
  saw.includes("perhaps")
    ? quiet(
        "Perhaps: the row's shard has changed or was solved again since the model was made, or its solve was " +
          "interrupted; nothing says which rows the model saw.",
      )
    : "";

// What a model says of a row, given whether it was trained on it ("yes", "perhaps" or ""): then it is no judge of the
// label, and a mark says so.
export function verdict(saw, right, text, mark = "trained on this row") {
  if (!saw) return judgement(right, text);
  const said = h("span", { class: "quiet" }, saw === "yes" ? ` ${mark}` : ` perhaps ${mark}`);
  return h("span", {}, right ? text : judgement(false, text), said);
}

// A text marked as right or wrong, by more than its colour.
export const judgement = (right, text) => h("span", { class: right ? "good" : "bad" }, (right ? "✓ " : "✗ ") + text);
