// Colours and signs of what the charts tell apart, for each theme.

// Okabe and Ito's blue and vermilion, and eight more that nobody with deuteranopia or protanopia takes for one another
// (ΔE2000 at least 13); every one has a contrast of 3 to 1 with what is behind it.
const PALETTE = {
  light: ["#0072b2", "#d55e00", "#009ca8", "#600054", "#541818", "#489c60", "#006048", "#0030b4", "#6c4800", "#a85478"],
  dark: ["#56b4e9", "#d55e00", "#0060fc", "#0c9078", "#d8f0a8", "#cc3054", "#fc9cb4", "#f0b400", "#3cfcf0", "#846090"],
};
// From little to much, in equal steps of lightness: matplotlib's inferno, as far as it has that contrast.
const RAMP = {
  light: ["#190c3e", "#310a5c", "#4c0c6b", "#67166e", "#84206b", "#a22a5f", "#bf3952", "#d74b3f", "#eb6429"],
  dark: ["#c03a51", "#d84c3e", "#ea632a", "#f57d15", "#fb9706", "#fcb418", "#f7d13d", "#f1ec6d", "#fcffa4"],
};

const theme = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
export const ramp = () => RAMP[theme()];

const cycle = (list, k) => list[k % list.length];

// Of the thing number k. Where there are more things than colours, the next of a colour has another symbol.
export const hue = (k) => cycle(PALETTE[theme()], k);
// Of one of many things whose symbols are too small to tell, or that have none.
export const shade = (k, total) =>
  total <= 10
    ? hue(k)
    : `hsl(${(k * 137.508) % 360} 60% ${theme() === "light" ? 24 + 6 * (k % 3) : 62 + 9 * (k % 3)}%)`;
// Those that ECharts draws of many points too.
const SYMBOLS = ["circle", "rect", "triangle", "diamond", "arrow"];
export const symbol = (k) => cycle(SYMBOLS, k + Math.floor(k / 10));
export const dash = (k) => cycle(["solid", [8, 4], [2, 3], [10, 3, 2, 3]], k);

// In a square of 12 px, as ECharts draws them.
const OUTLINES = {
  circle: "M6 0a6 6 0 1 0 .01 0z",
  rect: "M0 0H12V12H0z",
  triangle: "M6 0L12 12H0z",
  diamond: "M6 0L12 6 6 12 0 6z",
  arrow: "M6 0L12 12 6 9 0 12z",
};

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const DASHES = { solid: "", dashed: "6 4", dotted: "2 3" };

// What stands beside a name: a symbol, a line's dashes (null without a line), or both.
export function swatch(color, sign, dashes) {
  const line = dashes && {
    d: "M0 7H32",
    stroke: color,
    "stroke-width": 2,
    "stroke-dasharray": DASHES[dashes] ?? dashes.join(" "),
  };
  const wide = line ? 32 : 14;
  return svg(
    "svg",
    { class: "swatch", viewBox: `${line ? 0 : 9} 0 ${wide} 14`, width: wide, height: 14, "aria-hidden": "true" },
    ...(line ? [svg("path", line)] : []),
    ...(sign
      ? [svg("path", { d: OUTLINES[sign], fill: color, transform: "translate(10 1)", "data-symbol": sign })]
      : []),
  );
}
