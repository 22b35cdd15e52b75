// A line drawn round samples on the map.
import { state } from "../state.js";
import { placed } from "./rows.js";

// On a map's chart, switched on by its button; drawn() is called with state.lasso set. Returns {arm, armed}.
export function mapLasso(made, button, drawn) {
  let on = false,
    last = null;

  function arm(wanted) {
    on = wanted;
    last = null;
    button.setAttribute("aria-pressed", on);
    made.dispatchAction({
      type: "takeGlobalCursor",
      key: "brush",
      brushOption: on ? { brushType: "polygon", brushMode: "single" } : { brushType: false },
    });
  }
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

// The library takes a line that ends where it began for a click and drops it; closing a lasso is what people do.
const areaOf = (event) => event.areas.find((one) => one.coordRange && one.coordRange.length > 2);
