// The samples that are left by the map's filters and lasso: as pictures beside it, in a table below, and those picked.
import { h } from "../elements.js";
import { pictureGrid } from "../grid.js";
import { onPick, pickedBar } from "../picked.js";
import { peek, unpeek } from "../pictures.js";
import { state } from "../state.js";
import { sampleList } from "./list.js";

// select(row) is called for the sample chosen, draw() when the rows may be others. Returns {beside(map): the map's node
// with the pictures, picked, said, node: to place, fill(rows), first: row or undefined}.
export function shownSamples(select, draw) {
  const list = sampleList(select),
    picked = pickedBar(true);
  // the map is as wide as the pictures leave it
  const pictures = pictureGrid(select, () => dispatchEvent(new Event("resize")));
  onPick(picked, () => {
    if (state.filters.only === "basket") draw();
  });
  const fill = (rows) => {
    list.fill(rows);
    pictures.fill(rows);
  };
  const beside = (map) => h("div", { class: "beside" }, h("div", {}, map), pictures.node);
  return { beside, picked, said: list.said, node: list.node, first: list.first, fill };
}

// On a map's chart: a click opens the sample under the mouse, and its picture stands beside it.
export function byMouse({ made, rowAt }, place, select) {
  made.on("click", (event) => {
    const row = rowAt(event);
    if (row !== null) select(row);
  });
  made.on("mousemove", (event) => {
    const row = rowAt(event),
      own = event.event.event;
    if (row !== null && !own.zrByTouch) peek(row, own, place);
  });
  for (const kind of ["mouseout", "globalout"]) made.on(kind, unpeek);
}
