// The names of what a chart shows, each to be hidden and shown. The chart library's own legend is a picture: without
// keyboard, not read aloud, and where it has pages paper has the first alone.
import { h } from "./elements.js";
import { unmodified } from "./lines.js";
import { swatch } from "./palette.js";

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

// Above a chart's node. fill(entries, hidden) takes [name, colour, symbol, dashes] of each, and the names hidden.
export function legend(made, node) {
  const place = h("div", { class: "checks key", role: "toolbar", "aria-label": "Legend", onkeydown: byKeys });
  let known = "",
    boxes = [];
  const stopAt = (box) => boxes.forEach((one) => (one.tabIndex = one === box ? 0 : -1));
  const turn = (name) => made.dispatchAction({ type: "legendToggleSelect", name });
  const item = ([name, ...looks]) =>
    h(
      "label",
      {},
      h("input", { type: "checkbox", value: name, onchange: () => turn(name), onfocus: (e) => stopAt(e.target) }),
      swatch(...looks),
      name,
    );
  function byKeys(event) {
    const step = STEPS[event.key],
      at = boxes.indexOf(event.target);
    if (!step || at < 0 || !unmodified(event)) return;
    boxes[Math.min(Math.max(at + step, 0), boxes.length - 1)].focus();
    event.preventDefault();
  }
  function fill(entries, hidden = new Set()) {
    const now = JSON.stringify(entries);
    if (now !== known) {
      const from = boxes.find((box) => box === document.activeElement)?.value;
      place.replaceChildren(...entries.map(item));
      boxes = [...place.querySelectorAll("input")];
      stopAt(boxes[0]);
      boxes.find((box) => box.value === from)?.focus();
    }
    known = now;
    for (const box of boxes) box.checked = !hidden.has(box.value);
  }
  made.on("legendselectchanged", ({ selected }) => {
    for (const box of boxes) box.checked = selected[box.value] !== false;
  });
  node.before(place);
  return { fill };
}

// What stands in it of a chart's series; of two with the same name the later.
export function entriesOf(series) {
  const named = series.filter(({ name }) => name);
  return [...new Map(named.map((one) => [one.name, entry(one)])).values()];
}

const entry = ({ name, type, color, symbol, showSymbol, lineStyle }) => [
  name,
  color,
  showSymbol === false ? null : (symbol ?? (type === "bar" ? "rect" : "circle")),
  type === "line" ? (lineStyle?.type ?? "solid") : null,
];
