// The samples that the map's filters and lasso leave, in a table.
import { button, h, link, replaceTable, scrolled, sorted, table, verdict } from "../elements.js";
import { saveIds } from "../files.js";
import { write } from "../live.js";
import { count, counted, short } from "../numbers.js";
import { reveal } from "../lines.js";
import { keepButton } from "../picked.js";
import { peeks } from "../pictures.js";
import { className, judge, modelTitle, shardName, state, trainedOn, UNKNOWN } from "../state.js";

const LISTED = 200;
const CAPTION = "Samples";

// select(row) is called for the row chosen. Returns {said, node: to place, fill(rows), first: row or undefined}.
export function sampleList(select) {
  let listed = [],
    opened = null;
  const said = h("p", { id: "chosen", role: "status", "aria-live": "polite" }),
    region = scrolled(table(CAPTION, columns(select), []), true),
    tools = h("p", { class: "tools" }),
    node = h("div", { id: "list" }, region, tools);

  function fill(rows) {
    listed = rows;
    write(
      said,
      `${count(rows.length)} of ${counted(state.ids.length, "sample")}` +
        (state.lasso ? " inside the lasso" : "") +
        (state.filters.by ? `, as ${modelTitle(state.filters.by)} says` : "") +
        (state.hidden.size ? `, without ${state.hidden.size} hidden in the legend` : "") +
        (rows.length > LISTED ? `; the first ${LISTED} are listed, the headers sort all` : ""),
    );
    said.dataset.count = rows.length;
    const mark = (line, row) => {
      line.setAttribute("aria-current", row === state.selected);
      peeks(line, () => row);
    };
    replaceTable(region, table(CAPTION, columns(select), rows, mark, LISTED));
    const line = region.querySelector('[aria-current="true"]');
    if (line && opened !== state.selected) reveal(region, line);
    opened = state.selected;
    tools.replaceChildren(
      button("Save the ids as a file", () => saveIds(listed)),
      keepButton(() => listed),
    );
  }
  return { said, node, fill, first: () => sorted(CAPTION, columns(select), listed)[0] };
}

function columns(select) {
  const { name, best, classes, margin } = judge(),
    { moved } = state.columns,
    known = (row) => classes && classes[row] !== UNKNOWN;
  const saw = state.overview.shards.map((_, k) => trainedOn(k, name));
  const prediction = (row) =>
    known(row) ? verdict(saw[state.shard[row]], classes[row] === state.label[row], className(classes[row])) : "–";
  const every = [
    ["sample", (row) => link(state.ids[row], () => select(row)), false, (row) => state.ids[row]],
    ["class", (row) => className(state.label[row])],
    ["shard", (row) => shardName(state.shard[row])],
    [
      best ? "prediction" : `prediction of ${modelTitle(name)}`,
      prediction,
      false,
      (row) => (known(row) ? className(classes[row]) : null),
    ],
    // of other models it is not here
    ...(best ? [["margin", (row) => short(margin && margin[row]), true, (row) => margin && margin[row]]] : []),
    // how far its shard's component moves without it; absent where only a loose bound is known
    ...(moved ? [["influence", (row) => short(moved[row]), true, (row) => moved[row]]] : []),
  ];
  return state.overview.what ? every.filter(([title]) => ["sample", "shard"].includes(title)) : every;
}
