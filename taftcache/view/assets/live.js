// What a screen reader reads out: it takes note of a text that changes where it already stands, and of none that comes
// with its element.
const PAUSE_MS = 10_000; // between two words on how far something is

// A text into a node, unless it is there already: to write it again is to say it again.
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

let last = -Infinity;

// To those who do not see the page, in the one element that stands on it for that.
export function tell(text) {
  last = performance.now();
  write(document.getElementById("told"), text);
}

// How far something is: now and then.
export function tellProgress(text) {
  if (performance.now() - last >= PAUSE_MS) tell(text);
}
