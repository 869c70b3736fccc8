"use strict";
// Sort a table by the column whose head was pressed: numbers by value, the rest as text, empty last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = [...table.tBodies[0].rows].map((row) => {
        const text = row.cells[column].textContent;
        return { row, text, value: Number(text), empty: text === "" };
      });
      keyed.sort((a, b) => {
        if (a.empty !== b.empty) return a.empty ? 1 : -1;
        const numeric = !Number.isNaN(a.value) && !Number.isNaN(b.value);
        const order = numeric ? a.value - b.value : a.text.localeCompare(b.text);
        return down ? -order : order;
      });
      table.tBodies[0].append(...keyed.map((one) => one.row));
    });
  });
}

// Say where a table is wider than the screen; whether it is changes with the window.
const regions = [...document.querySelectorAll(".scroll")];
function markCut() {
  for (const region of regions) region.classList.toggle("cut", region.scrollWidth > region.clientWidth + 1);
}
markCut();
addEventListener("resize", markCut);
addEventListener("toggle", markCut, true);
