// Pictures of samples: whether there are any, and one that follows the mouse.
import { h, quiet } from "./elements.js";
import { counted, upper } from "./numbers.js";
import { ask, REPORT, source } from "./source.js";
import { className, state } from "./state.js";

const LARGE = 192; // px, of the picture beside the mouse
const DELAY_MS = 90; // until it is asked for, so that a mouse that passes by asks for nothing
const TINY = 64; // px; a picture of so few is shown in squares

let about = null;

// Why there are no pictures, in words, "" where there are; and what to bear in mind about them. A promise of {why_not,
// note}, asked for once.
export function aboutPictures() {
  if (REPORT)
    about ??= Promise.resolve({ why_not: few(Object.keys(REPORT.pictures).length), note: REPORT.picture_note });
  about ??= ask("pictures").catch(({ message }) => ({ why_not: message }));
  return about;
}

// What to bear in mind about them, in a line that is there once it is known.
export function pictureNote() {
  const node = quiet("", { id: "picture-note", hidden: true });
  aboutPictures().then(({ note }) => {
    node.textContent = note ? upper(note) + "." : "";
    node.hidden = !note;
  });
  return node;
}

const few = (pictures) =>
  pictures
    ? `a report holds those of ${counted(pictures, "sample")} alone, which the map shows; taftcache view shows all`
    : "this report holds none";

// A picture of a row, in a box of `side` px; null where the page has none. fail() is called where it cannot be had.
export function thumbnail(row, side, fail) {
  const place = source.picture(state.ids[row], devicePixelRatio > 1 ? 2 * side : side);
  if (!place) return null;
  return h("img", {
    src: place,
    alt: "",
    draggable: "false",
    onload: (e) => e.target.classList.toggle("tiny", e.target.naturalWidth <= TINY),
    onerror: fail,
  });
}

let box = null,
  anchor = null,
  timer = 0;

// Show the picture of a row beside a place on the screen, while its element `at` is there.
export function peek(row, { x, y }, at) {
  clearTimeout(timer);
  anchor = at;
  if (box?.dataset.row === String(row)) stand(x, y);
  else {
    unpeek();
    timer = setTimeout(() => open(row, x, y), DELAY_MS);
  }
}

export function unpeek() {
  clearTimeout(timer);
  box?.remove();
  box = null;
}

async function open(row, x, y) {
  if ((await aboutPictures()).why_not && !REPORT) return;
  if (anchor && !anchor.isConnected) return;
  unpeek();
  const image = thumbnail(row, LARGE, unpeek);
  if (!image) return;
  box = h(
    "div",
    { class: "peek", "data-row": row, "aria-hidden": "true" },
    image,
    h("div", {}, state.ids[row]),
    h("div", { class: "quiet" }, className(state.label[row])),
  );
  document.body.append(box);
  stand(x, y);
}

// Beside the mouse, on the side where there is room.
function stand(x, y) {
  const { width, height } = box.getBoundingClientRect(),
    gap = 18;
  box.style.left = (x + gap + width < innerWidth ? x + gap : Math.max(4, x - gap - width)) + "px";
  box.style.top = Math.max(4, Math.min(y - height / 2, innerHeight - height - 4)) + "px";
}

// The picture of `row(event)` beside the mouse while it is over a node; row gives null for none.
export function peeks(node, row) {
  const show = (event) => {
    const found = event.pointerType === "mouse" ? row(event) : null;
    if (found === null) unpeek();
    else peek(found, event, node);
  };
  node.addEventListener("pointermove", show);
  node.addEventListener("pointerleave", unpeek);
}

for (const kind of ["pointerdown", "keydown", "scroll", "popstate"])
  addEventListener(kind, unpeek, { capture: true, passive: true });
