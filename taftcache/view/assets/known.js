// Ids that no sample here has, and what the store says of them.
import { h } from "./elements.js";
import { ask, source } from "./source.js";

// As `taftcache receipts --sample` answers: {state, text}; state "" where nobody can be asked, or the answer is an error.
export async function known(id) {
  if (!source.live) return { state: "", text: "not here; taftcache receipts says whether it was forgotten" };
  return ask("known", { id }).catch((error) => ({ state: "", text: error.message }));
}

// An element that has the answer once it is known.
export function knownAs(tag, id) {
  const node = h(tag, { role: "status" }, `${id}: …`);
  known(id).then(({ text }) => (node.textContent = `${id}: ${text}`));
  return node;
}
