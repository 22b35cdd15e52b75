// The samples that the map's filters and lasso leave, in a table.
import { h, judgement, scrolled, table } from "../elements.js";
import { count, counted, short } from "../numbers.js";
import { peeks } from "../pictures.js";
import { className, shardName, state, UNKNOWN } from "../state.js";

const LISTED = 200;

// select(row) is called for the row chosen. Returns {said, node: to place, fill(rows), first: row or undefined}.
export function sampleList(select) {
  let listed = [];
  const said = h("p", { id: "chosen", role: "status", "aria-live": "polite" }),
    node = h("div", { id: "list" });

  function fill(rows) {
    listed = rows;
    said.textContent =
      `${count(rows.length)} of ${counted(state.ids.length, "sample")}` +
      (state.lasso ? " inside the lasso" : "") +
      (state.hidden.size ? `, without ${state.hidden.size} hidden in the legend` : "") +
      (rows.length > LISTED ? `; the first ${LISTED} are listed` : "");
    said.dataset.count = rows.length;
    const mark = (line, row) => {
      line.setAttribute("aria-selected", row === state.selected);
      peeks(line, () => row);
    };
    node.replaceChildren(
      scrolled(table("Samples", columns(select), rows.slice(0, LISTED), mark), true),
      h("p", {}, h("button", { type: "button", onclick: () => save(listed) }, "Save the ids as a file")),
    );
  }
  return { said, node, fill, first: () => listed[0] };
}

function columns(select) {
  const { model, margin, moved } = state.columns;
  const prediction = (row) =>
    model && model[row] !== UNKNOWN ? judgement(model[row] === state.label[row], className(model[row])) : "–";
  return [
    ["sample", (row) => h("button", { class: "link", type: "button", onclick: () => select(row) }, state.ids[row])],
    ["class", (row) => className(state.label[row])],
    ["shard", (row) => shardName(state.shard[row])],
    ["prediction", prediction],
    ["margin", (row) => short(margin && margin[row]), true],
    // how far its shard's component moves without it; absent where only a loose bound is known
    ...(moved ? [["influence", (row) => short(moved[row]), true]] : []),
  ];
}

function save(rows) {
  const text = rows.map((row) => state.ids[row]).join("\n") + "\n";
  h("a", { href: URL.createObjectURL(new Blob([text])), download: "ids.txt" }).click();
}
