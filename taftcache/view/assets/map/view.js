// The map of the samples: controls above it, the table below, one sample beside it.
import { keep } from "../address.js";
import { h, quiet } from "../elements.js";
import { knownAs } from "../known.js";
import { pictureNote } from "../pictures.js";
import { showSample } from "../sample.js";
import { state } from "../state.js";
import { mapChart } from "./chart.js";
import { stepByKeys } from "./keys.js";
import { clearControls, mapControls } from "./controls.js";
import { mapLasso } from "./lasso.js";
import { chosen, space } from "./rows.js";
import { byMouse, shownSamples } from "./shown.js";
import { mapWords } from "./words.js";

const HELP =
  "Wheel or + − to zoom, drag or arrow keys to move, 0 to see all, Shift and arrow keys to go from sample to sample, Enter for the one in the middle; the lasso (Escape puts it away), what is in view or the filters choose samples for the table, the search finds among them.";

export function mapView(main) {
  const words = mapWords(),
    place = h("div", { class: "map", id: "map", tabindex: "0", "aria-describedby": "keys" }),
    side = h("aside", { class: "side", "aria-label": "Sample" }),
    list = shownSamples(select, draw);
  const controls = mapControls({ change: draw, search: fill, enter, clear });
  const below = [list.picked, quiet(HELP, { id: "keys" }), words.below, list.said, list.node];
  main.append(
    h("h1", {}, "Map of the samples"),
    ...words.above,
    pictureNote(),
    controls.node,
    h("div", { class: "atlas" }, h("div", {}, list.beside(place), ...below), side),
  );
  const map = mapChart(place, fill),
    lasso = mapLasso(map.made, controls, fill, refresh);
  stepByKeys(map, select);

  function fill() {
    const rows = chosen(map.seen());
    list.fill(rows);
    map.mark(rows);
    controls.say(rows.length);
    keep();
  }
  function draw() {
    if (state.lassoIn !== space()) state.lasso = null; // the points have moved
    document.getElementById("space").value = space();
    map.draw();
    words.say();
    fill();
  }
  function select(row, stay) {
    state.selected = row;
    draw();
    showSample(side, state.ids[row], select).then(() => stay || intoView(side, place));
  }
  function refresh() {
    if (lasso.armed()) return; // it is done when it is switched off
    draw();
    lasso.again();
  }
  function enter() {
    if (list.first() !== undefined) select(list.first());
  }
  function clear() {
    clearControls();
    lasso.arm(false);
    draw();
  }
  byMouse(map, place, select);
  if (state.selected !== null) showSample(side, state.ids[state.selected], select);
  else if (state.missing !== null) side.append(h("h2", {}, "Not in this store"), knownAs("p", state.missing));
  else side.append(quiet("Choose a sample on the map, among the pictures or in the table."));
  draw();
  lasso.again();
  return { refresh };
}

// A sample that is not beside the map but below it.
function intoView(side, place) {
  if (side.offsetTop > place.offsetTop + place.offsetHeight) side.scrollIntoView();
}
