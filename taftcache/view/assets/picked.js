// The samples that were picked by hand, in the grid or in a list: the page's own selection.
import { h } from "./elements.js";
import { saveText } from "./files.js";
import { counted } from "./numbers.js";
import { state } from "./state.js";

export const isPicked = (row) => state.picked.has(row);

// Pick some rows, or leave them off.
export function pick(rows, on) {
  for (const row of rows)
    if (on) state.picked.add(row);
    else state.picked.delete(row);
}

// What is picked, and what to do with it; changed() is called once nothing is picked any more. Returns {node, update}.
export function pickedBar(changed) {
  const said = h("span", { role: "status", "aria-live": "polite", id: "picked" });
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  const node = h(
    "div",
    { class: "picked" },
    said,
    button("Show them on the map", showPicked),
    button("Save their ids as a file", () =>
      saveText(
        "ids.txt",
        [...state.picked].map((row) => state.ids[row]),
      ),
    ),
    button("Unpick all", () => {
      state.picked.clear();
      update();
      changed();
    }),
  );

  function update() {
    node.hidden = !state.picked.size;
    said.textContent = counted(state.picked.size, "sample") + " picked";
    said.dataset.count = state.picked.size;
  }
  update();
  return { node, update };
}

// The map with nothing but them.
function showPicked() {
  state.lasso = null;
  state.hidden.clear();
  state.filters = { class: "", shard: "", only: "picked", text: "" };
  if (location.hash.startsWith("#map")) dispatchEvent(new Event("hashchange"));
  else location.hash = "#map";
}
