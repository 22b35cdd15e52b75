// What forgetting one sample would change: the bound, and the solve without it.
import { button, h } from "./elements.js";
import { tell, tellProgress } from "./live.js";
import { count, counted, noun, percent, short, shortBound } from "./numbers.js";
import { askUntilDone, source } from "./source.js";
import { className } from "./state.js";

export function forgetting(found) {
  if (found.private) return [h("h3", {}, "Privacy"), h("p", {}, found.private)];
  if (found.unsolved) return [h("h3", {}, "If it were forgotten"), h("p", {}, `Not known: ${found.unsolved}`)];
  if (!found.forget) return [];
  const place = h("div", { id: "leave" });
  const out = [h("h3", {}, "If it were forgotten"), h("p", {}, bounds(found.forget)), place];
  if (!source.live) return out;
  const text = `Solve shard ${found.shard} without it`,
    show = (answer) => [h("p", {}, changes(found, answer))];
  return [...out, solveButton(text, { id: "solve" }, "leave-out", { id: found.id }, place, show)];
}

function bounds({ norm, moved, bound, composed_bound: composed }) {
  if (moved !== null)
    return `Without it, its shard's component, of norm ${short(norm)}, moves by ${short(moved)}: exact, in closed form.`;
  if (bound === null) return `Its shard's component has norm ${short(norm)}; this objective has no bound by the ridge.`;
  return (
    `Its shard's component, of norm ${short(norm)}, moves by at most ${shortBound(bound)}; the mean of the components by at most ` +
    `${shortBound(composed)}. These bounds are proved by the ridge, and are loose.`
  );
}

// What became of the held-out predictions of the mean of the components.
export const onHeldOut = (answer) =>
  `${count(answer.changed)} of ${counted(answer.held_out, "held-out prediction")} ` +
  `${noun(answer.changed, "changes", "change")}, accuracy ${percent(answer.accuracy[0])} to ` +
  `${percent(answer.accuracy[1])}: ${answer.gain}.`;

// A button that asks for a solve without samples; show(answer) gives what stands in place once it is done.
export function solveButton(text, attributes, name, query, place, show) {
  const say = ({ state, steps, with: other }) => {
    const waits = `waiting for the solve without ${other || "several samples"} …`;
    place.textContent = state === "busy" ? waits : `solving, pass ${steps} …`;
    tellProgress(place.textContent);
  };
  // Not disabled meanwhile: it would lose the keyboard's focus.
  const onclick = async () => {
    if (ask.getAttribute("aria-disabled") === "true") return;
    ask.setAttribute("aria-disabled", true);
    tell("solving …");
    const answer = await askUntilDone(name, query, () => place.isConnected, say);
    ask.setAttribute("aria-disabled", false);
    if (!answer) return;
    place.replaceChildren(...(answer.error ? [h("p", {}, answer.error)] : show(answer)));
    tell([...place.querySelectorAll("p")].map((line) => line.textContent).join(" "));
  };
  const ask = button(text, onclick, attributes);
  return h("p", {}, ask, h("span", { class: "quiet" }, " on the side; the store is not changed"));
}

// What the solve without a sample has changed.
function changes(found, answer) {
  const z = (when) => answer[when].mean[found.label].toFixed(2);
  const best = (when) => className(answer[when].mean.indexOf(Math.max(...answer[when].mean)));
  const changed = answer.changed === null ? "." : `; ${onHeldOut(answer)}`;
  const [old, chosen] = answer.ridge;
  const other =
    old === chosen
      ? ""
      : `, with another λ, which moves it too: the rows that stay choose ${short(chosen)}, with it ${short(old)}`;
  return (
    `Solved in ${counted(answer.passes, "pass", "passes")}: the component moves by ${short(answer.moved)} ` +
    `(exact to ${shortBound(answer.distance_bound)})${other}. In the mean of the components, the logit of its class goes from ` +
    `${z("before")} to ${z("after")}, its class from ${best("before")} to ${best("after")}${changed}`
  );
}
