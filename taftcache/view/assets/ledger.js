// What was forgotten, and what each request changed and proved, in the words of `taftcache receipts`.
import { h, quiet } from "./elements.js";
import { counted, upper } from "./numbers.js";
import { state } from "./state.js";

// So many of the newest are open from the start; on paper all are.
const OPEN = 20;
const KEYED =
  "Digests of earlier states are keyed with the store's own key, so they match nothing elsewhere. Left out here: the " +
  "lists of hashes of ids, of earlier shards and of what was trained on them (ids, shards_before, numbers_before)";

export function ledgerView(main) {
  const { entries, notes } = state.overview.ledger;
  main.append(
    h("h1", {}, "Ledger"),
    h(
      "p",
      {},
      entries.length
        ? `${counted(entries.length, "entry", "entries")} in one chain of digests, the newest first; the chain was ` +
            "checked when this was read. taftcache audit checks what they promise."
        : "Empty: nothing was forgotten yet.",
    ),
    ...entries.toReversed().map(entry),
    ...(entries.length ? [...notes, KEYED] : []).map((note) => quiet(upper(note) + ".")),
  );
}

function entry({ kept, lines }, k) {
  const [first, ...rest] = lines.length ? lines : [`entry ${kept.seq}, ${kept.time ?? ""}: ${kept.event ?? ""}`];
  return h(
    "details",
    { class: "entry", open: k < OPEN },
    h("summary", {}, upper(first)),
    rest.length
      ? h(
          "ul",
          {},
          rest.map((line) => h("li", {}, line)),
        )
      : null,
    h("details", {}, h("summary", {}, "As it is kept"), h("pre", { class: "mono" }, JSON.stringify(kept, null, 2))),
  );
}
