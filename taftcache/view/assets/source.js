// Where the data come from: the server that sent the page, or the page itself (a report). One form for both.
import { button, h } from "./elements.js";

const EMBEDDED = document.getElementById("data");
export const REPORT = EMBEDDED ? JSON.parse(EMBEDDED.textContent) : null;

const KINDS = { Float32Array, Int32Array, Uint8Array };

// An answer, or a part of one, with the arrays in it that came as base64 of their bytes.
export function unpack(found) {
  if (found === null || typeof found !== "object" || Array.isArray(found)) return found;
  if (typeof found.data !== "string" || !KINDS[found.type])
    // an empty array has no bytes
    return Object.fromEntries(Object.entries(found).map(([name, part]) => [name, unpack(part)]));
  const text = atob(found.data),
    raw = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) raw[i] = text.charCodeAt(i);
  return new KINDS[found.type](raw.buffer);
}

// The server's answer once the store has another root than it was started with.
const GONE = 410;
const BEFORE = " What you see is from before, and some of it may have been forgotten.";

// The root of the stores that the page was made of, once it is known: another tab may have made the server take new ones.
let root = "";

export const ENDED = "The server has ended; start taftcache view again.";
const POLL_MS = 300;

export async function ask(name, query = {}) {
  const answer = await fetch(name + "?" + new URLSearchParams(root ? { ...query, root } : query)).catch(() => {
    throw new Error(ENDED);
  });
  const body = await answer.json();
  if (answer.status === GONE) outdate(body.error);
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  if (name === "overview") root = body.root;
  return body;
}

// Ask for what the server works out aside, and again until it is "done" or "failed", which is also how a request ends
// that nobody answers. Until then say(answer) hears how far it is; null once wanted() is false.
export async function askUntilDone(name, query, wanted, say) {
  while (wanted()) {
    const answer = await ask(name, query).catch(({ message }) => ({ state: "failed", error: message }));
    if (!wanted()) break;
    if (answer.state === "done" || answer.state === "failed") return answer;
    say(answer);
    await new Promise((next) => setTimeout(next, POLL_MS));
  }
  return null;
}

// Whether the store has changed since the page was loaded, as far as the server was asked.
export const outdated = () => document.body.dataset.changed !== undefined;

// Say so above everything, and tell the window.
function outdate(text) {
  if (outdated()) return;
  document.body.dataset.changed = text;
  const reload = button("Reload", () => location.reload());
  document.getElementById("notice").append(h("p", {}, h("strong", {}, text), BEFORE), reload);
  dispatchEvent(new Event("outdated"));
}

export const source = {
  live: REPORT === null,
  async get(name) {
    return REPORT ? REPORT[name] : ask(name);
  },
  async sample(id) {
    if (!REPORT) return ask("sample", { id });
    const known = REPORT.samples[id];
    if (known) return known;
    const held = Object.keys(REPORT.samples).length;
    throw new Error(`this report holds no details of this sample, only those of ${held}; taftcache view shows any`);
  },
  picture(id, size) {
    if (REPORT) return REPORT.pictures[id] || null;
    return "picture?" + new URLSearchParams({ id, size });
  },
  // Classes of the held-out rows under the mean of all components but those in `out`.
  async compose(out) {
    if (!REPORT) return ask("compose", { without: out.join(",") }).then((a) => unpack(a.predictions));
    if (REPORT.logits) return composeHere(out);
    const known = REPORT.subsets[out.join(",")];
    if (known) return unpack(known);
    throw new Error("this report holds only the compositions along the slider; taftcache view makes any");
  },
  // How many held-out rows are right with the last shards subtracted in turn, and without each; see askUntilDone.
  async compositions(wanted, say) {
    return REPORT ? REPORT.compositions : askUntilDone("compositions", {}, wanted, say);
  },
};

let logits = null;

function composeHere(out) {
  logits ??= unpack(REPORT.logits);
  const names = REPORT["held-out"].components;
  const kept = names.map((_, k) => k).filter((k) => !out.includes(names[k]));
  const K = REPORT.overview.report.classes.length,
    size = logits.base.length,
    found = new Int32Array(size / K);
  for (let row = 0; row < found.length; row++) {
    let best = -Infinity;
    for (let c = 0; c < K; c++) {
      const at = row * K + c;
      let sum = 0;
      for (const k of kept) sum += logits.tangents[k * size + at];
      const z = logits.base[at] + sum / kept.length;
      if (z > best) {
        best = z;
        found[row] = c;
      }
    }
  }
  return found;
}
