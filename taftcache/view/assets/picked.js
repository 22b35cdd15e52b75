// The samples that were picked by hand, in the grid or in a list: those in the page's basket.
import { h } from "./elements.js";
import { saveText } from "./files.js";
import { counted } from "./numbers.js";
import { state } from "./state.js";

export const isPicked = (row) => state.basket.has(row);

// Pick some rows, or leave them off.
export function pick(rows, on) {
  for (const row of rows)
    if (on) state.basket.add(row);
    else state.basket.delete(row);
}

// What is in the basket, and what to do with it; changed() is called once it is empty. Returns {node, update}.
export function pickedBar(changed, onMap) {
  const said = h("span", { role: "status", "aria-live": "polite", id: "picked" });
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  const node = h(
    "div",
    { class: "picked" },
    said,
    onMap ? null : button("Show them on the map", showPicked),
    button("Save their ids as a file", () =>
      saveText(
        "ids.txt",
        [...state.basket].map((row) => state.ids[row]),
      ),
    ),
    button("Empty the basket", () => {
      state.basket.clear();
      update();
      changed();
    }),
  );

  function update() {
    node.hidden = !state.basket.size;
    said.textContent = counted(state.basket.size, "sample") + " in the basket";
    said.dataset.count = state.basket.size;
  }
  update();
  return { node, update };
}

// The map with nothing but them.
function showPicked() {
  state.lasso = null;
  state.hidden.clear();
  state.filters = { class: "", shard: "", only: "basket", text: "" };
  location.hash = "#map";
}
