// What the map says of itself: what the places mean, which model judges, and what its word is worth.
import { h, quiet } from "../elements.js";
import { write } from "../live.js";
import { counted, noun, percent } from "../numbers.js";
import { judge, modelTitle, noModel, ready, state, UNKNOWN, unsure } from "../state.js";
import { placed, space } from "./rows.js";

// Returns {above, below: to place, say: takes in what is chosen now}.
export function mapWords() {
  const axes = quiet("", { id: "axes" }),
    whose = h("p", { id: "whose", role: "status" }),
    worth = quiet("", { id: "worth" });
  function say() {
    write(axes, axesText());
    write(whose, whoseText());
    write(worth, worthText());
  }
  return { above: [axes, whose], below: worth, say };
}

// Which model judges, here and where the samples come from.
function whoseText() {
  const { name, best, classes } = judge(),
    { model, damage } = state.overview;
  if (!best)
    return (
      `Predictions are those of the model that was chosen under Classes: ${modelTitle(name)}. Its margins are not ` +
      `known here${classes?.includes(UNKNOWN) ? ", nor its predictions of training rows" : ""}.` +
      (model ? ` Clear goes back to the store's best: ${modelTitle(model)}.` : "")
    );
  if (noModel()) return noModel();
  const from = state.filters.only === "basket" && state.judge;
  return (
    `Predictions and margins are those of the store's best model${damage.length ? " that can be read" : ""}: ` +
    `${modelTitle(model)}.` +
    (from ? ` The suspected labels of Check the data are judged by others: ${from}.` : "")
  );
}

// What a prediction is worth on a row that the model was trained on.
function worthText() {
  const { name, best } = judge(),
    shards = name ? unsure(name) : [];
  if (best && noModel()) return "";
  return (
    "Where the model was trained on the row (among the pictures: fitted), it has learned the label, right or not, and " +
    "so confirms nothing: Check the data asks models that did not see the row." +
    (shards.length
      ? ` ${counted(shards.length, "shard")} (${firstFew(shards)}) ${noun(shards.length, "has", "have")} changed since ` +
        `it was trained, or ${noun(shards.length, "was", "were")} solved again since, or its solve was interrupted; the ` +
        "store does not keep which rows " +
        'it saw: these say "perhaps".'
      : "")
  );
}

const firstFew = (names) => names.slice(0, 5).join(", ") + (names.length > 5 ? ", …" : "");

// What the places mean, and whether all are known.
function axesText() {
  if (space() === "neighbours")
    return placed() === "neighbours"
      ? "Neighbours stay together (t-SNE of a part of the rows, the others between their nearest of those); distances far apart mean nothing."
      : ready("neighbours")
        ? "There is no neighbour embedding here; these are principal axes."
        : "The neighbour embedding is being made; principal axes meanwhile.";
  const explained = state.overview.explained;
  return (
    `Each point is a sample: ${state.overview.vectors}, along the two principal axes` +
    (explained.length ? ` (${percent(explained[0])} and ${percent(explained[1] ?? 0)} of the variance).` : ".") +
    (state.columns.x === undefined ? " Being read." : "")
  );
}
