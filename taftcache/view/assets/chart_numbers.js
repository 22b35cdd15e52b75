// The numbers of a chart in a table below it, for who cannot see it or has it on paper.
import { h, quiet, scrolled, table } from "./elements.js";
import { count } from "./numbers.js";
import { whilePrinted } from "./paper.js";

// More lines or columns are not printed, which paper then says.
const PAPER_LINES = 200,
  PAPER_COLUMNS = 12;

// Columns and rows are those of table(); it is made when it is opened, or printed.
export function chartNumbers(caption, columns, rows) {
  const place = h("div"),
    fits = rows.length <= PAPER_LINES && columns.length <= PAPER_COLUMNS;
  const fill = () => place.firstChild ?? place.append(scrolled(table(caption, columns, rows), true));
  const size = `${count(rows.length)} lines of ${count(columns.length)} columns`;
  const node = h(
    "details",
    { class: fits ? "numbers" : "numbers long", ontoggle: () => node.open && fill() },
    h("summary", {}, `The numbers: ${caption}`),
    place,
    fits ? null : quiet(`Not printed: ${size}. The page has them.`, { class: "quiet paper" }),
  );
  if (fits) whilePrinted(node, fill);
  return node;
}
