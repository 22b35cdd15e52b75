// A line drawn round samples on the map.
import { state } from "../state.js";
import { placed, places } from "./rows.js";

let listening = null; // of the map that is shown: it must not keep those that were left

// On a map's chart: one button switches it on, and off as Escape does, the other takes what is in view instead. drawn()
// is called with state.lasso set, off() once it is switched off without. Returns {arm, armed, again}.
export function mapLasso(made, { lasso: button, take: view }, drawn, off) {
  let on = false,
    last = null;

  function arm(wanted) {
    on = wanted;
    last = null;
    button.setAttribute("aria-pressed", on);
    if (on || listening === escape) {
      document.removeEventListener("keydown", listening);
      listening = on ? escape : null;
      document.addEventListener("keydown", listening);
    }
    if (made.isDisposed()) return;
    if (!on) made.getZr().trigger("mouseup", { offsetX: 0, offsetY: 0, event: {} }); // of a line that is half drawn
    made.dispatchAction({
      type: "takeGlobalCursor",
      key: "brush",
      brushOption: on ? { brushType: "polygon", brushMode: "single" } : { brushType: false },
    });
  }
  function turn() {
    arm(!on);
    if (!on) off();
  }
  function escape({ key }) {
    if (made.isDisposed()) arm(false);
    else if (key === "Escape") turn();
  }
  function take() {
    if (!places()[0]) return;
    arm(false);
    [state.lasso, state.lassoIn] = [inView(made), placed()];
    again();
    drawn();
  }
  button.addEventListener("click", turn);
  view.addEventListener("click", take);
  made.on("brush", (event) => {
    if (on) last = areaOf(event) || last;
  });
  made.on("brushEnd", (event) => {
    if (!on) return;
    const area = areaOf(event) || last;
    arm(false);
    [state.lasso, state.lassoIn] = area ? [area.coordRange, placed()] : [null, null];
    if (area && !areaOf(event)) again();
    drawn();
  });
  // Draw the line once more, where there is one.
  function again() {
    if (!state.lasso || state.lassoIn !== placed()) return;
    made.dispatchAction({
      type: "brush",
      areas: [{ brushType: "polygon", xAxisIndex: 0, yAxisIndex: 0, coordRange: state.lasso }],
    });
  }
  return { arm, armed: () => on, again };
}

// The corners of what a chart shows, in its places.
function inView(made) {
  const { x, y, width, height } = made.getModel().getComponent("grid").coordinateSystem.getRect();
  const corners = [
    [x, y],
    [x + width, y],
    [x + width, y + height],
    [x, y + height],
  ];
  return corners.map((at) => made.convertFromPixel({ xAxisIndex: 0, yAxisIndex: 0 }, at));
}

// The library takes a line that ends where it began for a click and drops it; closing a lasso is what people do.
const areaOf = (event) => event.areas.find((one) => one.coordRange && one.coordRange.length > 2);
