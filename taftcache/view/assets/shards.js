// Shards taken out of the composition, and what each contributes.
import { accuracyCurve, accuracyDots, accuracyLine, accuracyNumbers } from "./accuracy.js";
import { keep, lookAt } from "./address.js";
import { h, quiet, section, working } from "./elements.js";
import { count, noun, percent } from "./numbers.js";
import { source } from "./source.js";
import { judged, shardNumber, state, waiting } from "./state.js";

const IDENTITY =
  "A mean of components is the component of the mean: taking shards out of the composition needs no training, only a sum of logits.";

export function shardsView(main) {
  if (!state.held || !state.held.components.length) {
    main.append(h("h1", {}, "Shards"), ...(state.held?.damaged.length ? damaged() : [waiting("held-out predictions")]));
    return;
  }
  const names = state.held.components,
    alone = h("div", { class: "chart", id: "alone" }),
    curve = h("div", { class: "chart" }),
    said = h("div", {});
  const [range, shown, boxes, update] = subtraction(names);
  main.append(
    h("h1", {}, "Shards"),
    h("p", {}, IDENTITY),
    ...damaged(),
    h("div", { class: "tools" }, h("label", {}, "Shards subtracted, the last first", range)),
    shown,
    h("h2", {}, "In the composition"),
    boxes,
    said,
    h(
      "div",
      { class: "columns" },
      section("Accuracy as shards are subtracted", curve),
      section("What each shard contributes", alone),
    ),
    quiet("The same numbers in the terminal: taftcache evaluate STORE --without SHARD"),
  );
  update();
  curves(names, curve, alone, said);
}

// Shards that are in no composition here, whatever is chosen.
function damaged() {
  const names = state.held.damaged,
    what = noun(names.length, "its component is", "their components are");
  return names.length ? [h("p", { id: "left-out" }, `Left out, for ${what} damaged: ${names.join(", ")}.`)] : [];
}

// A slider and a box for each shard, which say what is left out, and the accuracy of what is left.
function subtraction(names) {
  const S = names.length,
    shown = h("p", { id: "composed", role: "status", "aria-live": "polite" }),
    boxes = h("div", { class: "checks" });
  const range = h("input", {
    id: "subtract",
    type: "range",
    min: 0,
    max: S - 1,
    step: 1,
    value: Math.min(state.out.size, S - 1),
    "aria-describedby": "composed",
    oninput: (e) => {
      state.out = new Set(names.slice(S - +e.target.value));
      update();
    },
  });
  let turn = 0;
  async function toggle(name, kept) {
    if (kept) state.out.delete(name);
    else if (state.out.size < S - 1) state.out.add(name);
    await update();
    boxes.querySelector(`input[value="${CSS.escape(name)}"]`)?.focus();
  }
  async function update() {
    keep();
    range.value = state.out.size;
    range.setAttribute("aria-valuetext", `${state.out.size} of ${S} shards subtracted`);
    boxes.replaceChildren(...names.map((name) => box(name, toggle)));
    const mine = ++turn,
      out = names.filter((name) => state.out.has(name));
    try {
      const result = judged(await source.compose(out));
      if (mine === turn)
        showResult(shown, result, `mean of ${S - out.length} of ${S + state.held.damaged.length} components`);
    } catch (error) {
      shown.textContent = error.message;
    }
  }
  return [range, shown, boxes, update];
}

function box(name, toggle) {
  const checked = !state.out.has(name),
    onchange = (e) => toggle(name, e.target.checked);
  return h("label", {}, h("input", { type: "checkbox", value: name, checked, onchange }), name);
}

function showResult(node, result, of) {
  node.replaceChildren(...accuracyLine(result, of));
  node.dataset.right = result.right;
  node.dataset.rows = result.rows;
}

async function curves(names, curve, alone, said) {
  const S = names.length,
    rows = state.held.labels.length,
    result = (from) => (right, k) => ({ right, rows, accuracy: right / rows, judged: judgedAs(from + k) });
  const say = ({ done, total }) => {
    const text = total ? `Being composed: ${count(done)} of ${count(total)} …` : "Being composed …";
    said.replaceChildren(...working(text, done, total));
  };
  const found = await source.compositions(() => curve.isConnected, say);
  if (found?.error) said.replaceChildren(h("p", {}, found.error));
  if (!found || found.error) return;
  said.remove();
  const quantiles = state.held.groups?.quantiles,
    judgedAs = (k) =>
      quantiles ? { groups: quantiles.length + 1, rows: found.of[k], quantile: quantiles.at(-1) } : null;
  const [fewer, without] = [found.fewer.map(result(0)), found.without.map(result(S))],
    [first, last] = [fewer[0], fewer[S - 1]].map(({ accuracy }) => percent(accuracy));
  const all = "all shards" + (state.held.damaged.length ? " but " + state.held.damaged.join(", ") : "");
  accuracyCurve(curve, `Accuracy goes from ${first} with ${all} to ${last} with one, with 95 % intervals`, fewer);
  const own = names.map((name) => judged(state.held.models["components/" + name])),
    [low, high] = [Math.min, Math.max].map((of) => percent(of(...own.map((one) => one.accuracy))));
  const label =
    `Accuracy of each shard's component alone, ${low} to ${high}, and of the composition without it, ` +
    "with 95 % intervals";
  const groups = [
    ["alone", own],
    ["all but it", without],
  ];
  const subtracted = [...fewer.keys()].map(String);
  curve.after(accuracyNumbers("Accuracy as shards are subtracted", "subtracted", subtracted, [["composed", fewer]]));
  alone.after(accuracyNumbers("What each shard contributes", "shard", names, groups));
  accuracyDots(alone, label, names, groups).on("click", ({ dataIndex }) =>
    lookAt({ shard: shardNumber(names[dataIndex]) }),
  );
}
