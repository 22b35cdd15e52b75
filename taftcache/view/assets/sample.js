// One sample: picture, attention, models, neighbours, and what forgetting it would change.
import { toggleButton } from "./picked.js";
import { button, h, perhapsNote, quiet, scrolled, table, verdict } from "./elements.js";
import { forgetting } from "./forgetting.js";
import { tell } from "./live.js";
import { counted, percent, short, shortBound } from "./numbers.js";
import { source } from "./source.js";
import { className, inWords, modelTitle, shardName, state, trainedOn } from "./state.js";

// Into side, when the source has answered and no other sample was asked for; select(row) is called for a neighbour.
export async function showSample(side, id, select) {
  side.dataset.sample = id;
  tell(inWords(state.ids.indexOf(id)));
  fill(side, id, quiet("Computing …"));
  let found = null,
    why = "";
  try {
    found = await source.sample(id);
  } catch (error) {
    why = error.message;
  }
  if (side.dataset.sample !== id) return;
  const parts = found ? details(found, select) : [brief(id), quiet(why)];
  fill(side, id, h("p", {}, toggleButton(state.ids.indexOf(id))), ...parts);
}

// Who came from here by keyboard, by a neighbour, stays here.
function fill(side, id, ...parts) {
  const inside = side.contains(document.activeElement),
    title = h("h2", { tabindex: "-1" }, id);
  side.replaceChildren(title, ...parts);
  if (!inside) return;
  title.focus({ preventScroll: true });
  title.scrollIntoView({ block: "nearest" });
}

function details(found, select) {
  const role = found.role === "held-out" ? " (held out)" : "";
  const rows =
    `${counted(found.rows.count, "cached row")}, norm ${short(found.rows.mean)} on average, ` +
    `${shortBound(found.rows.largest)} at most; max |x| ${short(found.max_abs)}`;
  return [
    found.picture ? picture(found.id, 384, "picture") : quiet(found.why_no_picture || "No picture can be reached."),
    h("p", {}, `${classText(found.label)}shard ${found.shard}${role}`),
    quiet(rows),
    ...models(found),
    ...attention(found),
    ...neighbours(found, select),
    ...forgetting(found),
  ].filter((part) => part !== null);
}

// Nothing in a store that has no classes.
const classText = (label) => (state.overview.what ? "" : `class ${className(label)}, `);

// What the columns say, where a report holds no more.
function brief(id) {
  const row = state.ids.indexOf(id),
    { model, margin } = state.columns,
    saw = trainedOn(state.shard[row], state.overview.model);
  const said = model
    ? `; ${modelTitle(state.overview.model)}` +
      (saw ? ` (${saw === "yes" ? "" : "perhaps "}trained on this row)` : "") +
      `: ${className(model[row])}, margin ${short(margin && margin[row])}`
    : "";
  return h("p", {}, `${classText(state.label[row])}shard ${shardName(state.shard[row])}${said}`);
}

// null where the picture cannot be had.
function picture(id, size, kind, alt = "picture of " + id) {
  const place = source.picture(id, size);
  if (!place) return null;
  return h("img", { class: kind, src: place, alt, onerror: (e) => e.target.remove() });
}

const ORDER = ["models/exact", "models/weighted", "models/mean", "models/head", "base"];

function models(found) {
  const rows = Object.entries(found.models);
  if (!rows.length) return [];
  const rank = ([name]) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  rows.sort((a, b) => rank(a) - rank(b) || a[0].localeCompare(b[0]));
  const best = (z) => z.indexOf(Math.max(...z));
  const margin = (z) => z[found.label] - Math.max(...z.filter((_, k) => k !== found.label));
  const saw = (name) => trainedOn(state.shard[found.row], name);
  const columns = [
    ["model", ([name]) => modelTitle(name)],
    ["class", ([name, z]) => verdict(saw(name), best(z) === found.label, className(best(z)))],
    ["logit", ([, z]) => z[found.label].toFixed(2), true],
    ["margin", ([, z]) => (z.length > 1 ? margin(z).toFixed(2) : "–"), true],
  ];
  const note = perhapsNote(rows.map(([name]) => saw(name)));
  return [h("h3", {}, "Predictions"), scrolled(table("Predictions of every model", columns, rows), true), note];
}

function attention(found) {
  if (!found.attention)
    return found.why_no_attention ? [h("h3", {}, "Attention"), quiet("None: " + found.why_no_attention + ".")] : [];
  const { grid, heads, prefix } = found.attention;
  const figures = heads.map((head, k) => {
    const most = `most on a patch ${percent(Math.max(...head))}, on the class token ${percent(prefix[k])}`;
    return h(
      "figure",
      {},
      h("div", { class: "over" }, found.picture ? picture(found.id, 384, "", "") : null, heatmap(head, grid, k)),
      h("figcaption", {}, `head ${k}; ${most}`),
    );
  });
  return [h("h3", {}, "Attention of the class row, by head"), h("div", { class: "heads" }, figures)];
}

// One head's attention as squares, the darker the more.
function heatmap(head, [high, wide], k) {
  const most = Math.max(...head),
    at = head.indexOf(most),
    svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const place = `row ${Math.floor(at / wide) + 1} of ${high}, column ${(at % wide) + 1} of ${wide}`;
  svg.setAttribute("aria-label", `attention of head ${k}, most of it on the patch in ${place}`);
  head.forEach((value, i) => {
    const cell = document.createElementNS(svg.namespaceURI, "rect");
    const set = {
      x: i % wide,
      y: Math.floor(i / wide),
      width: 1.02, // over the seam to the next
      height: 1.02,
      fill: "#ff5a1f",
      opacity: (0.85 * value) / most,
    };
    for (const [key, v] of Object.entries(set)) cell.setAttribute(key, v);
    svg.append(cell);
  });
  return svg;
}

function neighbours(found, select) {
  if (!found.neighbours.length) return [];
  const buttons = found.neighbours.map((near) =>
    button(
      [
        found.picture ? picture(near.id, 96, "", "") : null,
        h("span", {}, near.id),
        state.overview.what ? null : h("span", {}, className(near.label)),
        h("span", { class: "quiet" }, "cos " + near.cosine.toFixed(3)),
      ],
      () => select(state.ids.indexOf(near.id)),
    ),
  );
  return [h("h3", {}, "Nearest in the cache, by cosine around the mean"), h("div", { class: "near" }, buttons)];
}
