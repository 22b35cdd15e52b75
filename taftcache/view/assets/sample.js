// One sample: picture, attention, models, neighbours, and what forgetting it would change.
function picture(id, size, kind) {
  const place = source.picture(id, size);
  if (!place) return null;
  return h("img", { class: kind, src: place, alt: "picture of " + id, onerror: (e) => e.target.remove() });
}

async function showSample(side, id, select) {
  side.dataset.sample = id;
  side.replaceChildren(h("h2", {}, id), h("p", { class: "quiet" }, "Computing …"));
  let found;
  try {
    found = await source.sample(id);
  } catch (error) {
    if (side.dataset.sample === id)
      side.replaceChildren(h("h2", {}, id), ...brief(id), h("p", { class: "quiet" }, error.message));
    return;
  }
  if (side.dataset.sample !== id) return;
  side.replaceChildren(
    h("h2", {}, id),
    found.picture
      ? picture(id, 384, "picture")
      : h("p", { class: "quiet" }, found.why_no_picture || "No picture can be reached."),
    h(
      "p",
      {},
      `class ${className(found.label)}, shard ${found.shard}` + (found.role === "held-out" ? " (held out)" : ""),
    ),
    h(
      "p",
      { class: "quiet" },
      `${found.rows.count} cached rows, norm ${short(found.rows.mean)} on average, ` +
        `${short(found.rows.largest)} at most; max |x| ${short(found.max_abs)}`,
    ),
    ...models(found),
    ...attention(found),
    ...neighbours(found, select),
    ...forgetting(found),
  );
}

// What the columns say, where a report holds no more.
function brief(id) {
  const row = state.ids.indexOf(id),
    { mean, margin } = state.columns;
  return [
    h(
      "p",
      {},
      `class ${className(state.label[row])}, shard ${shardName(state.shard[row])}` +
        (mean ? `; composed model: ${className(mean[row])}, margin ${short(margin && margin[row])}` : ""),
    ),
  ];
}

function models(found) {
  const rows = Object.entries(found.models);
  if (!rows.length) return [];
  const order = ["base", "models/mean", "models/head", "models/exact"];
  const rank = ([name]) => (order.includes(name) ? order.indexOf(name) : order.length);
  rows.sort((a, b) => rank(a) - rank(b) || a[0].localeCompare(b[0]));
  const best = (z) => z.indexOf(Math.max(...z));
  const margin = (z) => z[found.label] - Math.max(...z.filter((_, k) => k !== found.label));
  const titles = { base: "base", "models/mean": "composed", "models/head": "head only" };
  return [
    h("h3", {}, "Predictions"),
    scrolled(
      table(
        "Predictions of every model",
        [
          ["model", ([name]) => titles[name] || name.replace("components/", "shard ")],
          [
            "class",
            ([, z]) =>
              h(
                "span",
                { class: best(z) === found.label ? "good" : "bad" },
                (best(z) === found.label ? "✓ " : "✗ ") + className(best(z)),
              ),
          ],
          ["logit of class", ([, z]) => z[found.label].toFixed(2), true],
          ["margin", ([, z]) => margin(z).toFixed(2), true],
        ],
        rows,
      ),
      true,
    ),
  ];
}

function attention(found) {
  if (!found.attention)
    return found.why_no_attention
      ? [h("h3", {}, "Attention"), h("p", { class: "quiet" }, "None: " + found.why_no_attention + ".")]
      : [];
  const [high, wide] = found.attention.grid;
  return [
    h("h3", {}, "Attention of the class row, by head"),
    h(
      "div",
      { class: "heads" },
      found.attention.heads.map((head, k) => {
        const most = Math.max(...head),
          svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
        svg.setAttribute("preserveAspectRatio", "none");
        head.forEach((value, i) => {
          const cell = document.createElementNS(svg.namespaceURI, "rect");
          const set = {
            x: i % wide,
            y: Math.floor(i / wide),
            width: 1.02,
            height: 1.02,
            fill: "#ff5a1f",
            opacity: (0.85 * value) / most,
          };
          for (const [key, v] of Object.entries(set)) cell.setAttribute(key, v);
          svg.append(cell);
        });
        return h(
          "figure",
          {},
          h("div", { class: "over" }, found.picture ? picture(found.id, 384, "") : null, svg),
          h(
            "figcaption",
            {},
            `head ${k}; most on a patch ${percent(most)}, on the class token ${percent(found.attention.prefix[k])}`,
          ),
        );
      }),
    ),
  ];
}

function neighbours(found, select) {
  if (!found.neighbours.length) return [];
  return [
    h("h3", {}, "Nearest in the cache"),
    h(
      "div",
      { class: "near" },
      found.neighbours.map((near) =>
        h(
          "button",
          { type: "button", title: near.id, onclick: () => select(state.ids.indexOf(near.id)) },
          found.picture ? picture(near.id, 96, "") : null,
          h("span", {}, near.id),
          h("span", {}, className(near.label)),
          h("span", { class: "quiet" }, "cos " + near.cosine.toFixed(3)),
        ),
      ),
    ),
  ];
}

function forgetting(found) {
  if (!found.forget) return found.private ? [h("h3", {}, "Privacy"), h("p", {}, found.private)] : [];
  const f = found.forget,
    place = h("div", { id: "leave", role: "status", "aria-live": "polite" });
  const out = [
    h("h3", {}, "If it were forgotten"),
    h(
      "p",
      {},
      `Its shard's component, of norm ${short(f.norm)}, moves by at most ${short(f.bound)}; the composed model by at most ${short(f.composed_bound)}. ` +
        "These bounds are proved by the ridge, and are loose.",
    ),
    place,
  ];
  if (found.left_out) leftOut(place, found, found.left_out);
  if (!source.live) return out;
  const button = h(
    "button",
    {
      type: "button",
      id: "solve",
      onclick: async () => {
        button.disabled = true;
        for (;;) {
          const answer = await ask("leave-out", { id: found.id }).catch((error) => ({
            state: "failed",
            error: error.message,
          }));
          if (answer.state === "working" || answer.state === "busy")
            place.textContent =
              answer.state === "working"
                ? `solving the shard without it, pass ${answer.passes} …`
                : `waiting for ${answer.sample} …`;
          else {
            leftOut(place, found, answer);
            return;
          }
          await new Promise((done) => setTimeout(done, 300));
        }
      },
    },
    `Solve shard ${found.shard} without it`,
  );
  return [...out, h("p", {}, button, h("span", { class: "quiet" }, " on the side; the store is not changed"))];
}

function leftOut(place, found, answer) {
  if (answer.state === "failed") {
    place.textContent = answer.error;
    return;
  }
  const z = (when) => answer[when].mean[found.label].toFixed(2);
  const best = (when) => className(answer[when].mean.indexOf(Math.max(...answer[when].mean)));
  place.replaceChildren(
    h(
      "p",
      {},
      `Solved in ${answer.passes} passes: the component moves by ${short(answer.moved)} ` +
        `(exact to ${short(answer.distance_bound)}). Composed, the logit of its class goes from ${z("before")} to ${z("after")}, its class from ${best("before")} to ${best("after")}` +
        (answer.changed === null
          ? "."
          : `; ${answer.changed} of ${answer.held_out} held-out predictions change, accuracy ${percent(answer.accuracy[0])} to ${percent(answer.accuracy[1])}.`),
    ),
  );
}
