// What is done before the page is printed, and undone after.

export const PAPER = 640; // px, between the margins of a page that is upright

// By nodes themselves, so that none of a view that was left is kept.
export function whilePrinted(node, print, back = () => {}) {
  node.dataset.printed = "";
  node.addEventListener("beforeprint", print);
  node.addEventListener("afterprint", back);
}

for (const kind of ["beforeprint", "afterprint"])
  addEventListener(kind, () => {
    for (const node of document.querySelectorAll("[data-printed]")) node.dispatchEvent(new Event(kind));
  });
