// Which rows the map shows, and where.
import { isPicked } from "../picked.js";
import { classesBy, ready, state, UNKNOWN } from "../state.js";

// Rows that pass the filters: class, shard, right or wrong, what they are taken for.
export function passing() {
  const { class: k, shard, only, taken, by } = state.filters,
    rows = [];
  const found = classesBy(by);
  for (let row = 0; row < state.ids.length; row++) {
    if (k !== "" && state.label[row] !== +k) continue;
    if (shard !== "" && state.shard[row] !== +shard) continue;
    if (only === "basket") {
      if (!isPicked(row)) continue;
    } else if (only && (!found || found[row] === UNKNOWN || (found[row] === state.label[row]) !== (only === "right")))
      continue;
    if (taken !== "" && (!found || found[row] !== +taken)) continue;
    rows.push(row);
  }
  return rows;
}

// Of the variance: where the two axes say less, the map opens on neighbours.
const TELLING = 0.2;

// Where the points are to be: "pca" or "neighbours".
export function space() {
  const { explained } = state.overview,
    little = explained.length > 0 && explained.reduce((sum, v) => sum + v) < TELLING;
  return state.space ?? (little && (state.columns.nx || !ready("neighbours")) ? "neighbours" : "pca");
}

// Where they are: the neighbour embedding takes a while.
export const placed = () => (space() === "neighbours" && state.columns.nx ? "neighbours" : "pca");

// Columns of both coordinates in the space that is chosen, once it is known.
export function places() {
  return placed() === "neighbours" ? [state.columns.nx, state.columns.ny] : [state.columns.x, state.columns.y];
}

// Those of rows that are inside the lasso, and whose ids contain what is searched for.
export function chosen(rows) {
  const wanted = state.filters.text.toLowerCase(),
    lasso = state.lassoIn === placed() ? state.lasso : null;
  const [x, y] = places();
  return rows.filter(
    (row) => (!wanted || state.ids[row].toLowerCase().includes(wanted)) && (!lasso || inside(lasso, x[row], y[row])),
  );
}

// Whether a point is in a polygon: a ray from it to the left meets the edges an odd number of times.
function inside(polygon, x, y) {
  let hit = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i],
      [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) hit = !hit;
  }
  return hit;
}
