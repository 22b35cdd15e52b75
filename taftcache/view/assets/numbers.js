// Numbers in words.
// Zeros at the end of a fraction, and its point where nothing else is left of it.
const IDLE = /(?:(\.\d*[1-9])|\.)0+(?=e|$)/;

const missing = (x) => x === null || x === undefined || Number.isNaN(x);

export const percent = (x, digits = 2) => (missing(x) ? "–" : (100 * x).toFixed(digits) + " %");
export const count = (x) => x.toLocaleString("en-US");
// "1 row", "2 rows"; `noun` is the word alone.
export const noun = (n, one, more = one + "s") => (n === 1 ? one : more);
export const counted = (n, one, more) => count(n) + " " + noun(n, one, more);
// "3rd", "10th": up to 20.
export const ordinal = (n) => n + (["th", "st", "nd", "rd"][n] || "th");
export const short = (x) => (missing(x) ? "–" : Number(x).toPrecision(3).replace(IDLE, "$1"));

// A bound from above with so many digits, rounded up: a smaller one would not hold.
export function atMost(bound, digits) {
  const near = missing(bound) ? NaN : Number(bound.toPrecision(digits));
  if (!(near < bound)) return near;
  const [, power] = near.toExponential().split("e");
  return Number((near + Number(`1e${power - digits + 1}`)).toPrecision(digits));
}

export const shortBound = (bound) => short(atMost(bound, 3));

// A text that a full stop is to follow.
export const inLine = (text) => text.replace(/\.$/, "");
// The same at the beginning of a sentence.
export const upper = (text) => text[0].toUpperCase() + inLine(text.slice(1));

export function bytes(n) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (n < 1000) return (unit === "B" ? n : n.toFixed(1)) + " " + unit;
    n /= 1000;
  }
  return n.toFixed(1) + " TB";
}
