// The samples in the page's basket: put there, or taken out, from any view.
import { go, keep, lookAt } from "./address.js";
import { button, h } from "./elements.js";
import { tell } from "./live.js";
import { count, counted } from "./numbers.js";
import { state } from "./state.js";

// What was in the basket when it was emptied, until it is filled again.
let emptied = [];

export const isPicked = (row) => state.basket.has(row);

// act() is called when the basket has changed, as long as a node is in the document; then both may go.
export function onPick(node, act) {
  node.dataset.watches = "basket";
  node.addEventListener("pick", act);
}

// Put rows into the basket, or take them out; before: what can be put back then.
export function pick(rows, on, before = []) {
  for (const row of rows)
    if (on) state.basket.add(row);
    else state.basket.delete(row);
  state.lostBasket = "";
  emptied = before;
  showCount();
  tell(inBasket());
  keep();
  for (const node of document.querySelectorAll('[data-watches="basket"]'))
    if (node.isConnected) node.dispatchEvent(new Event("pick")); // a view may make itself anew
}

const inBasket = () =>
  state.basket.size ? counted(state.basket.size, "sample") + " in the basket" : "The basket is empty";

// How many there are, in the navigation.
export function showCount() {
  const node = document.getElementById("count");
  node.textContent = state.basket.size ? ` (${count(state.basket.size)})` : "";
}

// A button that puts the rows of rows() into the basket, and says how many are new there.
export function keepButton(rows, text = "Put them in the basket") {
  const said = h("span", { class: "quiet" });
  const onclick = () => {
    const before = state.basket.size;
    pick(rows(), true);
    said.textContent = `${count(state.basket.size - before)} more in the basket`;
    tell(said.textContent);
  };
  return h("span", { class: "put" }, button(text, onclick, { id: "put" }), said);
}

// A button that puts one row into the basket, or takes it out.
export function toggleButton(row) {
  const node = button("", () => pick([row], !isPicked(row)));
  const say = () => (node.textContent = isPicked(row) ? "Take out of the basket" : "Put in the basket");
  onPick(node, say);
  say();
  return node;
}

// A box that puts rows into the basket together, or takes them out.
export function pickBox(rows) {
  const box = h("input", {
    type: "checkbox",
    "aria-label": `put ${rows.map((row) => state.ids[row]).join(" and ")} in the basket`,
    onchange: () => pick(rows, box.checked),
  });
  const say = () => (box.checked = rows.every(isPicked));
  onPick(box, say);
  say();
  return box;
}

// A button that empties the basket, and then fills it again: it stays, and so does the keyboard.
export function emptyButton() {
  const turn = () => (state.basket.size ? pick([...state.basket], false, [...state.basket]) : pick(emptied, true)),
    node = button("", turn, { id: "empty" });
  function say() {
    node.hidden = nothing();
    node.textContent = state.basket.size ? "Empty the basket" : "Put them back";
  }
  onPick(node, say);
  say();
  return node;
}

// Neither a sample nor what could be put back.
const nothing = () => !state.basket.size && !emptied.length;

// How many there are and where to see them; not there while the basket is empty, but to fill it again.
export function pickedBar(onMap) {
  const said = h("span", { id: "picked" }),
    see = [
      button("Open the basket", () => go("basket")),
      ...(onMap ? [] : [button("Show them on the map", () => lookAt({ only: "basket" }))]),
    ];
  const node = h("div", { class: "picked" }, said, see, emptyButton());
  function say() {
    node.hidden = nothing();
    for (const one of see) one.hidden = !state.basket.size;
    said.textContent = inBasket();
    said.dataset.count = state.basket.size;
  }
  onPick(node, say);
  say();
  return node;
}
