"use strict";
// The page says everything without this: tables sort, curves answer and one benchmark is shown at a time with it.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Tables: a click on a heading sorts by it, a second one the other way round.

function value(cell) {
  const text = cell.firstChild && cell.tagName === "TD" ? cell.textContent.replace("\u2212", "-") : cell.textContent;
  const found = text.match(/-?\d+(\.\d+)?(e[+-]?\d+)?/);
  return cell.tagName === "TH" ? text.trim() : found ? Number(found[0]) : null;
}

function sort(table, column, ascending) {
  const body = table.tBodies[0];
  const compared = (a, b) => {
    const [x, y] = [value(a.cells[column]), value(b.cells[column])];
    if (x === null || y === null) return (x === null) - (y === null);
    return (typeof x === "string" ? x.localeCompare(y) : x - y) * (ascending ? 1 : -1);
  };
  body.append(...[...body.rows].sort(compared));
}

for (const table of all("table.sortable")) {
  all("thead th", table).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      const ascending = now ? now === "descending" : column === 0;
      all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sort(table, column, ascending);
    });
  });
}

// Curves: the values after a task, where the pointer is; a row of the table shows its curve alone.

function follow(chart, svg) {
  const curves = all("g[data-label]", svg);
  const cursor = svg.querySelector(".cursor");
  const tip = chart.querySelector(".tip");
  const places = svg.dataset.x.split(" ").map(Number);
  const hide = () => { tip.hidden = true; cursor.style.visibility = "hidden"; };
  svg.addEventListener("pointerleave", hide);
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const task = places.reduce((best, place, i) => Math.abs(place - x) < Math.abs(places[best] - x) ? i : best, 0);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, places[task]);
    cursor.style.visibility = "visible";
    const lines = curves
      .map((curve) => [curve, curve.dataset.values.split(" ")[task]])
      .sort((a, b) => b[1] - a[1])
      .map(([curve, shown]) => {
        const line = document.createElement("span");
        const swatch = document.createElement("i");
        swatch.className = "swatch";
        swatch.style.cssText = curve.style.cssText;
        const number = document.createElement("span");
        number.textContent = shown;
        line.append(swatch, curve.dataset.label, number);
        return line;
      });
    const title = document.createElement("b");
    title.textContent = svg.dataset.tasks.split("\n")[task];
    tip.replaceChildren(title, ...lines);
    tip.hidden = false;
    const right = event.clientX - box.left > box.width / 2;
    tip.style.left = right ? "auto" : `${event.clientX - box.left + 24}px`;
    tip.style.right = right ? `${box.right - event.clientX + 24}px` : "auto";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
}

for (const chart of all(".chart")) {
  all("svg[data-x]", chart).forEach((svg) => follow(chart, svg));
}

for (const section of all("section")) {
  for (const row of all("tr[data-label]", section)) {
    const dim = (on) => all("g[data-label]", section).forEach(
      (curve) => curve.classList.toggle("dim", on && curve.dataset.label !== row.dataset.label));
    row.addEventListener("pointerenter", () => dim(true));
    row.addEventListener("pointerleave", () => dim(false));
  }
}

// Benchmarks: one at a time, and its address can be passed on.

const sections = all("section[id]");
function choose() {
  const wanted = sections.find((section) => `#${section.id}` === location.hash) || sections[0];
  sections.forEach((section) => { section.hidden = section !== wanted; });
  all("nav a").forEach((link) => {
    if (link.hash === `#${wanted.id}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
}
if (sections.length > 1) {
  document.body.classList.add("tabbed");
  addEventListener("hashchange", () => { choose(); scrollTo(0, 0); });
  choose();
}

// On paper nothing is folded away.

let folded = [];
addEventListener("beforeprint", () => {
  folded = all("details.part:not([open])");
  folded.forEach((part) => { part.open = true; });
});
addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
