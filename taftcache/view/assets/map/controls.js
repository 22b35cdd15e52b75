// What the map shows, to choose: colour, places, filters; lasso and clear.
import { button, choice, h, oneOf } from "../elements.js";
import { known } from "../known.js";
import { write } from "../live.js";
import { count, counted } from "../numbers.js";
import { clearFilters, shardNames, state } from "../state.js";
import { colours } from "./colours.js";

const SPACES = [
  ["pca", "principal axes"],
  ["neighbours", "neighbour embedding"],
];
const ONLY = [
  ["", "all"],
  ["wrong", "wrong only"],
  ["right", "right only"],
  ["basket", "basket only"],
];

// After so many ms without a key the table is searched.
const PAUSE_MS = 150;

// on: change (something else is chosen), search (another text), enter (in the search), clear. Returns {node,
// lasso, take: buttons, say(found): how many samples the search has found}.
export function mapControls(on) {
  // What moves or hides points makes a lasso round them meaningless.
  const unlasso = (set) => (value) => {
    set(value);
    state.lasso = null;
    on.change();
  };
  const filter = (key) => unlasso((value) => (state.filters[key] = value));
  const select = (key, label, options) => choice(key, label, options, state.filters[key], filter(key));
  const ofClasses = (...chosen) => {
    const node = select(...chosen);
    node.hidden = Boolean(state.overview.what); // where there are none
    return node;
  };
  const names = colours().map(([name]) => name);
  if (state.overview.what && !names.includes(state.colour)) state.colour = names[0];
  const colour = choice("colour", "Colour", colours(), state.colour, (value) => {
    state.colour = value;
    state.hidden.clear();
    on.change();
  });
  const space = unlasso((value) => (state.space = value));
  const lasso = button("Lasso", null, { id: "lasso", "aria-pressed": "false" }),
    take = button("Take the view", null, { id: "take" });
  const found = searchResult();
  const node = h(
    "div",
    { class: "tools" },
    colour,
    choice("space", "Places", SPACES, null, space),
    ofClasses("class", "Class", oneOf(state.overview.report.classes)),
    select("shard", "Shard", oneOf(shardNames())),
    select("only", "Show", ONLY),
    ofClasses("taken", "Taken for", oneOf(state.overview.report.classes)),
    search(on.search, on.enter),
    found.matches,
    lasso,
    take,
    button("Clear", on.clear, { id: "clear" }),
  );
  return { node: h("div", {}, node, found.answer), lasso, take, say: found.say };
}

function search(changed, enter) {
  let waits = null;
  function now() {
    clearTimeout(waits);
    const { value } = document.getElementById("search");
    if (value === state.filters.text) return;
    state.filters.text = value;
    changed();
  }
  const field = h("input", {
    id: "search",
    type: "search",
    placeholder: " ", // by which print.css knows that it is empty
    value: state.filters.text,
    autocomplete: "off",
    oninput: () => {
      clearTimeout(waits);
      waits = setTimeout(() => field.isConnected && now(), PAUSE_MS);
    },
    onkeydown: (e) => {
      if (e.key !== "Enter") return;
      now();
      enter();
    },
  });
  return h("label", {}, "Id contains", field);
}

// How many ids contain what is searched for; and where no sample has just that id, what is known of it.
function searchResult() {
  const matches = h("span", { id: "matches", class: "quiet", role: "status" }),
    answer = h("p", { id: "known", role: "status" });
  let asked = "";
  function say(found) {
    const { text } = state.filters,
      all = text ? state.ids.filter((id) => id.toLowerCase().includes(text.toLowerCase())) : [],
      hidden = all.length - found;
    write(matches, text ? counted(found, "match", "matches") + (hidden ? ` shown, ${count(hidden)} hidden` : "") : "");
    if (text === asked) return;
    asked = text;
    answer.textContent = "";
    if (!text || all.includes(text)) return;
    known(text).then((said) => {
      if (asked === text && (!all.length || !["unknown", ""].includes(said.state)))
        answer.textContent = `${text}: ${said.text}`;
    });
  }
  return { matches, answer, say };
}

// Every sample again.
export function clearControls() {
  clearFilters();
  for (const id of ["class", "shard", "only", "taken", "search"]) document.getElementById(id).value = "";
}
