// A table's lines by keyboard, and what its region leaves out of sight.

// What can be pressed or ticked in a line.
export const controls = (line) => [...line.querySelectorAll("button, input")];
const reach = (line, on) => controls(line).forEach((one) => (one.tabIndex = on ? 0 : -1));

// Of a table's lines, Tab stops at one alone: where the keyboard is, else the one that is chosen or the first.
export function oneTabStop(body) {
  let at = null;
  body.addEventListener("focusin", ({ target }) => {
    if (at?.isConnected) reach(at, false);
    at = target.closest("tr");
    reach(at, true);
  });
  return () => {
    at = body.querySelector('[aria-current="true"]') ?? body.rows[0];
    for (const line of body.rows) reach(line, line === at);
  };
}

const NEXT = {
  ArrowDown: (line) => line.nextElementSibling,
  ArrowUp: (line) => line.previousElementSibling,
  Home: (line) => line.parentElement.firstElementChild,
  End: (line) => line.parentElement.lastElementChild,
};

// Whether a key is pressed without those that make it the browser's: to zoom, to go back.
export const unmodified = ({ ctrlKey, altKey, metaKey }) => !(ctrlKey || altKey || metaKey);

// From a control in a line of a table, keys go to that of another one.
export function byLines(event) {
  const line = event.target.closest("tbody tr"),
    next = line && unmodified(event) ? NEXT[event.key]?.(line) : null;
  const to = next && (controls(next)[controls(line).indexOf(event.target)] ?? controls(next)[0]);
  if (!to) return;
  to.focus();
  event.preventDefault();
}

// Scroll a region, and nothing around it, to a line of its table.
export function reveal(region, line) {
  const head = region.querySelector("thead").offsetHeight,
    [top, end] = [line.offsetTop - head, line.offsetTop + line.offsetHeight];
  region.scrollTop = Math.min(top, Math.max(region.scrollTop, end - region.clientHeight));
}

// Which columns a region has no room for is said below it (.scroll::after), as long as that is so.
const sizes = new ResizeObserver((changed) => {
  const regions = new Set(changed.map(({ target }) => target.closest(".scroll")));
  requestAnimationFrame(() => regions.forEach((region) => region && sayHidden(region)));
});

export function watchColumns(region, inner) {
  sizes.observe(region);
  sizes.observe(inner);
}

export function sayHidden(region) {
  const { left, right } = region.getBoundingClientRect();
  const named = (out) => {
    const all = [...region.querySelectorAll("th")]
      .filter((head) => out(head.getBoundingClientRect()))
      .map((head) => head.textContent || "…");
    return all.slice(0, 6).join(", ") + (all.length > 6 ? ` and ${all.length - 6} more` : "");
  };
  const before = named((head) => head.left < left - 1),
    after = named((head) => head.right > right + 1);
  const said = [before && `← ${before}`, after && `${after} →`].filter(Boolean).join("   ");
  if (said) region.dataset.hidden = said;
  else delete region.dataset.hidden;
}
