// The grid of pictures beside the map: in which order, and one line where there are none.
import { keep } from "./address.js";
import { pictureCells } from "./cells.js";
import { button, choice, h, quiet } from "./elements.js";
import { inLine } from "./numbers.js";
import { aboutPictures } from "./pictures.js";
import { judge, state, UNKNOWN } from "./state.js";

// What cells can be ordered by: [key, title, column]
const ORDERS = [
  ["", "order of the store", () => null],
  ["label", "class", () => state.label],
  ["shard", "shard", () => state.shard],
  ["model", "prediction", () => judge().classes],
  ["margin", "margin", () => judge().margin],
  ["moved", "influence", () => state.columns.moved],
];

// open(row) shows a sample, settled() is called once it is known whether there are pictures. Returns {node, fill(rows)};
// node is one line that says why where there are none.
export function pictureGrid(open, settled) {
  const node = h("section", { class: "pictures", "aria-label": "Pictures" }),
    cells = pictureCells(open);
  let rows = [];
  const tools = orderTools(() => {
    keep();
    cells.fill(ordered(rows));
  });
  aboutPictures().then(({ why_not: why }) => {
    if (why)
      node.replaceChildren(
        quiet(`No grid of pictures: ${inLine(why.replace(/^no pictures: /, ""))}.`, { id: "no-pictures" }),
      );
    else {
      node.classList.add("there");
      node.replaceChildren(tools.node, cells.node);
    }
    settled();
    cells.lay();
  });
  function fill(found) {
    rows = found;
    tools.update();
    cells.fill(ordered(rows));
  }
  return { node, fill };
}

function orderTools(changed) {
  const { order } = state,
    place = h("span", {});
  const falling = button("", () => {
    order.falling = !order.falling;
    say();
    changed();
  });
  const say = () => (falling.textContent = order.falling ? "▼ falling" : "▲ rising");
  let known = "";
  // columns come one after the other
  function update() {
    const there = ORDERS.filter(([key, , column]) => !key || column()),
      keys = there.map(([key]) => key).join();
    if (keys === known) return;
    known = keys;
    place.replaceChildren(
      choice("order", "Order of the pictures", there, order.key, (key) => {
        order.key = key;
        changed();
      }),
    );
  }
  say();
  update();
  return { node: h("div", { class: "tools" }, place, falling), update };
}

// Rows in the order that is chosen; those without a value last.
function ordered(rows) {
  const { order } = state,
    column = ORDERS.find(([key]) => key === order.key)?.[2]();
  if (!column) return order.falling ? rows.toReversed() : rows;
  const sign = order.falling ? -1 : 1,
    missing = (v) => Number.isNaN(v) || v === UNKNOWN;
  return rows.toSorted((a, b) => {
    const [x, y] = [column[a], column[b]];
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    return sign * (x - y) || a - b;
  });
}
