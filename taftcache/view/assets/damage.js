// Files of the store that are damaged, over every view.
import { h } from "./elements.js";
import { state } from "./state.js";

const MEND = "What needs none of these files is shown. taftcache verify STORE --repair mends what can be made again.";

// An alert is read aloud when it changes, so only then it is made anew.
export function showDamage() {
  const node = document.getElementById("damage"),
    { damage } = state.overview;
  node.hidden = !damage.length;
  if (node.querySelectorAll("li").length === damage.length) return;
  node.replaceChildren(
    h("p", {}, h("b", {}, "The store is damaged. "), MEND),
    h(
      "ul",
      {},
      damage.map((problem) => h("li", {}, problem)),
    ),
  );
}

// In place of the ledger where a file of it is.
export const damagedLedger = (main) =>
  main.append(h("h1", {}, "Ledger"), h("p", {}, "None: a file of the ledger is damaged."));
