// Cells of pictures, of which only those that are seen are in the document.
import { h, quiet, verdict } from "./elements.js";
import { unmodified } from "./lines.js";
import { PAPER, whilePrinted } from "./paper.js";
import { count, counted, short } from "./numbers.js";
import { isPicked, onPick, pick } from "./picked.js";
import { peeks, thumbnail } from "./pictures.js";
import { className, judge, state, takenFor, trainedOn, UNKNOWN } from "./state.js";

const LEAST = 104, // px, of a cell's width
  LINE = 18, // px, of the text below its picture
  SIDE = 96; // px, of the picture that is asked for
const GAP = 6; // px, below the text
const BEYOND = 2; // lines of cells above and below what is seen
const REST_MS = 60; // without scrolling, until pictures are asked for
const POOL = 600; // pictures that are kept until they are seen again

// open(row) shows a sample. Returns {node, fill(rows), lay: after the room has changed}.
export function pictureCells(open) {
  const filler = h("div", { class: "filler", role: "presentation" }),
    node = h(
      "div",
      { id: "grid", class: "grid", tabindex: "0", role: "listbox", "aria-multiselectable": "true" },
      filler,
    );
  // rows in order; how many stand in a line; a cell's size in px; which one the keyboard is at
  const at = { rows: [], columns: 1, wide: LEAST, high: LEAST, active: 0 };
  const there = new Map(); // cells by row
  const pool = picturePool();
  let timer = 0;

  function lay() {
    at.columns = Math.max(1, Math.floor(filler.clientWidth / LEAST));
    at.wide = filler.clientWidth / at.columns;
    at.high = Math.round(at.wide) + LINE * (judge().classes ? 3 : 1) + GAP;
    filler.style.height = Math.ceil(at.rows.length / at.columns) * at.high + "px";
    redraw();
  }
  function redraw() {
    there.clear();
    filler.replaceChildren();
    draw();
  }
  function draw() {
    const [first, wanted] = seen(node, at);
    keepOnly(there, new Set(wanted));
    wanted.forEach((row, k) => {
      if (!there.has(row)) there.set(row, cellOf(row, pool.kept(row)));
      stand(there.get(row), first + k, at);
      if (!there.get(row).isConnected) filler.append(there.get(row));
    });
    if (at.rows.length) node.setAttribute("aria-activedescendant", "cell-" + at.rows[at.active]);
    clearTimeout(timer);
    timer = setTimeout(() => there.forEach((cell, row) => pool.load(cell, row)), REST_MS);
  }
  function fill(rows) {
    const active = at.rows[at.active];
    at.rows = rows;
    at.active = Math.max(0, rows.indexOf(active));
    const label = `Pictures of ${counted(rows.length, "sample")}: arrow keys to move, Enter to open, Space to put in the basket`;
    node.setAttribute("aria-label", label);
    lay();
  }
  function turn(row) {
    pick([row], !isPicked(row));
  }
  byMouse(node, at, open, turn);
  byKeys(node, at, draw, open, turn);
  node.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(() => {
    if (Math.abs(filler.clientWidth - at.wide * at.columns) > 1) lay();
    else draw();
  }).observe(node);
  onPick(node, redraw);
  onPaper(node, at, lay);
  return { node, fill, lay };
}

// Paper has whole lines of the pictures that are seen, and says which ones of how many.
function onPaper(node, at, lay) {
  const said = quiet("", { class: "quiet paper" });
  const print = () => {
    if (!at.rows.length) return said.remove();
    node.style.width = Math.min(PAPER, node.offsetWidth) + "px";
    lay();
    const first = Math.floor(node.scrollTop / at.high),
      lines = Math.max(1, Math.floor(node.clientHeight / at.high)),
      end = Math.min((first + lines) * at.columns, at.rows.length);
    node.style.height = (Math.ceil(end / at.columns) - first) * at.high + 2 + "px"; // with both edges
    node.scrollTop = first * at.high;
    said.textContent = `Pictures ${count(first * at.columns + 1)} to ${count(end)} of ${count(at.rows.length)}; the page has all.`;
    node.after(said);
  };
  const back = () => {
    node.style.removeProperty("width");
    node.style.removeProperty("height");
    lay();
  };
  whilePrinted(node, print, back);
}

// The place of the first row that is to be in the document, and the rows from there.
function seen(node, { rows, columns, high }) {
  const first = Math.max(0, (Math.floor(node.scrollTop / high) - BEYOND) * columns),
    end = (Math.ceil((node.scrollTop + node.clientHeight) / high) + BEYOND) * columns;
  return [first, node.clientHeight ? rows.slice(first, end) : []];
}

// Of the cells by row, those of some rows.
function keepOnly(there, rows) {
  for (const [row, cell] of there)
    if (!rows.has(row)) {
      cell.remove();
      there.delete(row);
    }
}

// Pictures by row: those of cells that went are kept for a while, and none is asked for before its cell stays.
function picturePool() {
  const images = new Map();
  function kept(row) {
    const image = images.get(row);
    if (image) {
      images.delete(row);
      images.set(row, image); // seen last
    }
    return image;
  }
  function load(cell, row) {
    if (cell.querySelector("img, .none")) return;
    const none = () => {
      images.delete(row);
      cell.querySelector("img")?.replaceWith(h("span", { class: "none quiet" }, "no picture"));
    };
    const image = thumbnail(row, SIDE, none);
    if (!image) return;
    images.set(row, image);
    if (images.size > POOL) images.delete(images.keys().next().value);
    cell.querySelector(".frame").append(image);
  }
  return { kept, load };
}

function cellOf(row, image) {
  const { name, classes, margin } = judge(),
    label = className(state.label[row]),
    known = classes && classes[row] !== UNKNOWN,
    ahead = margin && !Number.isNaN(margin[row]) ? `margin ${short(margin[row])}` : "";
  const saw = trainedOn(state.shard[row], name);
  return h(
    "div",
    {
      id: "cell-" + row,
      class: "cell" + (row === state.selected ? " open" : ""),
      role: "option",
      "data-row": row,
      "aria-selected": String(isPicked(row)),
      "aria-label": `${state.ids[row]}, class ${label}${takenFor(row)}${known && ahead ? ", " + ahead : ""}`,
    },
    h("span", { class: "frame" }, image),
    h("span", { class: "tick", title: "into the basket, or out of it" }, "✓"),
    h("span", { class: "name" }, label),
    classes &&
      h(
        "span",
        { class: "name" },
        known ? verdict(saw, classes[row] === state.label[row], className(classes[row]), "fitted") : "–",
      ),
    classes && h("span", { class: "name quiet" }, ahead),
  );
}

// Put a cell where number k stands.
function stand(cell, k, { rows, columns, wide, high, active }) {
  cell.style.width = wide + "px";
  cell.style.height = high + "px";
  cell.style.transform = `translate(${(k % columns) * wide}px, ${Math.floor(k / columns) * high}px)`;
  cell.classList.toggle("active", k === active);
  cell.setAttribute("aria-posinset", k + 1);
  cell.setAttribute("aria-setsize", rows.length);
}

const rowOf = (event) => {
  const cell = event.target.closest("[data-row]");
  return cell ? +cell.dataset.row : null;
};

function byMouse(node, at, open, turn) {
  node.addEventListener("click", (event) => {
    const row = rowOf(event);
    if (row === null) return;
    at.active = at.rows.indexOf(row);
    if (event.target.closest(".tick") || event.ctrlKey || event.metaKey) turn(row);
    else open(row);
  });
  peeks(node, rowOf);
}

function byKeys(node, at, draw, open, turn) {
  node.addEventListener("keydown", (event) => {
    const { rows, columns, high, active } = at,
      page = Math.max(1, Math.floor(node.clientHeight / high)) * columns;
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -columns,
      ArrowDown: columns,
      PageUp: -page,
      PageDown: page,
      Home: -rows.length,
      End: rows.length,
    };
    if (!unmodified(event) || !rows.length || !(event.key in steps || event.key === "Enter" || event.key === " "))
      return;
    event.preventDefault();
    if (event.key === "Enter") open(rows[active]);
    else if (event.key === " ") turn(rows[active]);
    else {
      at.active = Math.min(Math.max(active + steps[event.key], 0), rows.length - 1);
      const top = Math.floor(at.active / columns) * high;
      node.scrollTop = Math.min(top, Math.max(node.scrollTop, top + high - node.clientHeight));
      draw();
    }
  });
}
