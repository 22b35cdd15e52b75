// What forgetting one sample would change: the bound, and the solve without it.
import { h } from "./elements.js";
import { count, counted, noun, percent, short } from "./numbers.js";
import { ask, source } from "./source.js";
import { className } from "./state.js";

const POLL_MS = 300;

export function forgetting(found) {
  if (found.private) return [h("h3", {}, "Privacy"), h("p", {}, found.private)];
  if (found.unsolved) return [h("h3", {}, "If it were forgotten"), h("p", {}, `Not known: ${found.unsolved}`)];
  if (!found.forget) return [];
  const place = h("div", { id: "leave", role: "status", "aria-live": "polite" });
  const out = [h("h3", {}, "If it were forgotten"), h("p", {}, bounds(found.forget)), place];
  if (found.left_out) showAnswer(place, found, found.left_out);
  if (!source.live) return out;
  const button = h(
    "button",
    {
      type: "button",
      id: "solve",
      onclick: () => {
        button.disabled = true;
        solve(place, found);
      },
    },
    `Solve shard ${found.shard} without it`,
  );
  return [...out, h("p", {}, button, h("span", { class: "quiet" }, " on the side; the store is not changed"))];
}

function bounds({ norm, moved, bound, composed_bound: composed }) {
  if (moved !== null)
    return `Without it, its shard's component, of norm ${short(norm)}, moves by ${short(moved)}: exact, in closed form.`;
  if (bound === null) return `Its shard's component has norm ${short(norm)}; this objective has no bound by the ridge.`;
  return (
    `Its shard's component, of norm ${short(norm)}, moves by at most ${short(bound)}; the mean of the components by at most ` +
    `${short(composed)}. These bounds are proved by the ridge, and are loose.`
  );
}

// What became of the held-out predictions of the mean of the components.
export const onHeldOut = (answer) =>
  `${count(answer.changed)} of ${counted(answer.held_out, "held-out prediction")} ` +
  `${noun(answer.changed, "changes", "change")}, accuracy ${percent(answer.accuracy[0])} to ` +
  `${percent(answer.accuracy[1])}: ${answer.gain}.`;

// Another solve goes first: without one sample, or without those of the basket.
export const waitingFor = (answer) => `waiting for the solve without ${answer.with || "several samples"} …`;

// Ask for the solve, and again until it is done, as long as it is looked at.
async function solve(place, found) {
  while (place.isConnected) {
    const answer = await ask("leave-out", { id: found.id }).catch((error) => ({
      state: "failed",
      error: error.message,
    }));
    if (answer.state === "working") place.textContent = `solving the shard without it, pass ${answer.passes} …`;
    else if (answer.state === "busy") place.textContent = waitingFor(answer);
    else {
      showAnswer(place, found, answer);
      return;
    }
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
}

function showAnswer(place, found, answer) {
  if (answer.state === "failed") {
    place.textContent = answer.error;
    return;
  }
  const z = (when) => answer[when].mean[found.label].toFixed(2);
  const best = (when) => className(answer[when].mean.indexOf(Math.max(...answer[when].mean)));
  const changed = answer.changed === null ? "." : `; ${onHeldOut(answer)}`;
  const [old, chosen] = answer.ridge;
  const other =
    old === chosen
      ? ""
      : `, with another λ, which moves it too: the rows that stay choose ${short(chosen)}, with it ${short(old)}`;
  const text =
    `Solved in ${counted(answer.passes, "pass", "passes")}: the component moves by ${short(answer.moved)} ` +
    `(exact to ${short(answer.distance_bound)})${other}. In the mean of the components, the logit of its class goes from ` +
    `${z("before")} to ${z("after")}, its class from ${best("before")} to ${best("after")}${changed}`;
  place.replaceChildren(h("p", {}, text));
}
