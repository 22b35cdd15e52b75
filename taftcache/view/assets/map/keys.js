// The map by keyboard.
import { unmodified } from "../lines.js";
import { state } from "../state.js";
import { places } from "./rows.js";

const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const SCALES = { "+": 0.7, "=": 0.7, "-": 1 / 0.7, 0: 1e9 };

// A map's chart is moved and zoomed.
export function moveByKeys(made, node) {
  node.addEventListener("keydown", (event) => {
    const scale = SCALES[event.key];
    if (!unmodified(event) || (event.shiftKey && KEYS[event.key])) return;
    if (!KEYS[event.key] && !scale) return;
    const [zx, zy] = made.getOption().dataZoom,
      [dx, dy] = KEYS[event.key] || [0, 0];
    made.dispatchAction({
      type: "dataZoom",
      batch: [
        { dataZoomIndex: 0, ...moved(zx, dx, scale || 1) },
        { dataZoomIndex: 1, ...moved(zy, dy, scale || 1) },
      ],
    });
    event.preventDefault();
  });
}

// A zoom window, in percent of the axis, scaled round its middle and moved by a part of its width.
function moved(zoom, by, scale) {
  const span = Math.min(100, (zoom.end - zoom.start) * scale);
  return around((zoom.start + zoom.end) / 2 + by * span * 0.15, span);
}

function around(middle, span) {
  const start = Math.min(Math.max(middle - span / 2, 0), 100 - span);
  return { start, end: start + span };
}

// A map that is zoomed goes after a row that it does not show.
function follow(made, row) {
  const [x, y] = places(),
    [px, py] = made.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [x[row], y[row]]),
    box = made.getModel().getComponent("grid").coordinateSystem.getRect();
  const parts = [(px - box.x) / box.width, 1 - (py - box.y) / box.height];
  if (parts.every((part) => part >= 0 && part <= 1)) return;
  const batch = made.getOption().dataZoom.map(({ start, end }, dataZoomIndex) => ({
    dataZoomIndex,
    ...around(start + parts[dataZoomIndex] * (end - start), end - start),
  }));
  made.dispatchAction({ type: "dataZoom", batch });
}

// Enter selects the sample nearest to the middle, Shift and an arrow key the next one that way: then the keyboard stays
// on the map, and so does the window.
export function stepByKeys({ made, seen }, select) {
  const node = made.getDom();
  node.addEventListener("keydown", (event) => {
    const way = event.shiftKey ? KEYS[event.key] : null;
    if (!way && event.key !== "Enter") return;
    event.preventDefault();
    const row = nearest(made, seen(), way);
    if (row === null) return;
    select(row, Boolean(way));
    follow(made, row);
  });
}

// Of rows: the nearest to the sample that is selected in a way [dx, dy], within 45 degrees of it; without a way, or a
// sample, the nearest to the middle.
function nearest(made, rows, way) {
  const [x, y] = places();
  if (!x) return null;
  const [x0, y0] = made.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [0, 0]),
    [x1, y1] = made.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [1, 1]);
  const at = (row) => [x0 + (x1 - x0) * x[row], y0 + (y1 - y0) * y[row]];
  const from = way && state.selected !== null && !Number.isNaN(x[state.selected]) ? at(state.selected) : null,
    [cx, cy] = from ?? [made.getWidth() / 2, made.getHeight() / 2];
  let best = null,
    least = Infinity;
  for (const row of rows) {
    const [px, py] = at(row),
      [dx, dy] = [px - cx, cy - py]; // upwards is positive, as in KEYS
    if (from) {
      const along = dx * way[0] + dy * way[1],
        across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
      if (row === state.selected || along <= 0 || across > along) continue;
    }
    const far = dx * dx + dy * dy;
    if (far < least) [best, least] = [row, far];
  }
  return best;
}
