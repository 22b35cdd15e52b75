// What the promises of private models leave open.
import { h } from "./elements.js";

export function uncovered(models) {
  const found = models.find((m) => m.privacy);
  if (!found) return [];
  const open = found.privacy.not_covered.join("; ");
  return [
    h(
      "p",
      { class: "uncovered" },
      `Private models are no solutions and have no certificate; their promise does not cover: ${open}. ` +
        "Nor does it cover this page, which shows the rows themselves.",
    ),
  ];
}
