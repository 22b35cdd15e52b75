// Files that the page saves on this machine.
import { h } from "./elements.js";
import { state } from "./state.js";

// Lines of text.
function saveText(name, lines) {
  const place = URL.createObjectURL(new Blob([lines.join("\n") + "\n"]));
  h("a", { href: place, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(place), 60_000);
}

// Rows of values as CSV, the titles first. What a spreadsheet would take for a formula gets an apostrophe, also where a
// semicolon or a tab before it separates cells: an id may be anybody's, and nothing reads this file back.
export function saveTable(name, titles, rows) {
  saveText(
    name,
    [titles, ...rows].map((row) => row.map(quoted).join(",")),
  );
}

function quoted(value) {
  const safe = typeof value === "string" ? value.replace(/(?<![^;\t\r\n])(?=[=+\-@\t\r＝＋－＠])/g, "'") : value,
    text = String(safe ?? "");
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

// Ids of rows, one a line, as `taftcache forget --file` takes them.
export const saveIds = (rows, name = "ids.txt") =>
  saveText(
    name,
    rows.map((row) => state.ids[row]),
  );
