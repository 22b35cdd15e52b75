// What was forgotten, in order.
import { h } from "./elements.js";
import { counted } from "./numbers.js";
import { state } from "./state.js";

export function ledgerView(main) {
  const entries = state.overview.ledger;
  main.append(
    h("h1", {}, "Ledger"),
    h(
      "p",
      {},
      entries.length
        ? `${counted(entries.length, "entry", "entries")} in one chain of digests, the newest first; checked when this was read.`
        : "Empty: nothing was forgotten yet.",
    ),
    ...entries.map(details).reverse(),
  );
}

function details(entry) {
  const samples = entry.samples ? `: ${counted(entry.samples, "sample")}` : "";
  return h(
    "details",
    {},
    h("summary", {}, `${entry.seq}. ${entry.time || ""} ${entry.event || ""}${samples}`),
    h("pre", { class: "mono" }, JSON.stringify(entry, null, 2)),
  );
}
