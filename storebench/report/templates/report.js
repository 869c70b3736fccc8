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

// The matrix of everything: filters, a base to compare with, columns to sort by, and cells that open their table.
// The address keeps the view; without this script, the page shows the first settings.
function explore() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("filters");
  const place = document.getElementById("matrix");
  const view = new URLSearchParams(location.hash.slice(1));
  const choices = {
    dataset: ["all", ...new Set(data.panels.map((p) => p.dataset))],
    state: ["all", ...new Set(data.panels.map((p) => p.state))],
    workers: ["all", ...new Set(data.panels.map((p) => String(p.workers)))],
    work: ["all", ...new Set(data.panels.map((p) => p.work))],
    base: ["usual", ...Object.keys(data.labels)],
  };
  for (const [name, options] of Object.entries(choices)) {
    for (const option of options) form.elements[name].add(new Option(data.labels[option] ?? option, option));
    if (options.includes(view.get(name))) form.elements[name].value = view.get(name);
  }
  form.hidden = false;
  let sorted = Number(view.get("sort") ?? -1);

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  function cellOf(panel, store) {
    const own = panel.stores[store];
    const cell = document.createElement("td");
    if (!own) return cell;
    const base = form.elements.base.value === "usual" ? panel.base : form.elements.base.value;
    const [ratio, verdict] = own.ratios[base] ?? [null, store === base ? "base" : ""];
    const button = element("button", ratio === null ? own.rate : `${own.rate} (${ratio.toPrecision(2)}x)`, verdict);
    button.type = "button";
    button.title = ratio === null ? verdict : `${verdict}: ${ratio} times ${data.labels[base]}`;
    button.addEventListener("click", () => open(panel.anchor));
    cell.append(button);
    return cell;
  }

  function open(anchor) {
    const table = document.getElementById(anchor);
    for (let up = table; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    table?.scrollIntoView({ block: "center" });
    table?.focus();
  }

  function draw() {
    const wanted = (panel) => ["dataset", "state", "workers", "work"].every(
      (name) => form.elements[name].value === "all" || form.elements[name].value === String(panel[name]));
    const panels = data.panels.filter(wanted);
    const rate = (panel, store) => Number((panel.stores[store]?.rate ?? "-1").replaceAll(",", ""));
    let stores = Object.keys(data.labels).filter((store) => panels.some((panel) => panel.stores[store]));
    if (panels[sorted]) stores = stores.sort((a, b) => rate(panels[sorted], b) - rate(panels[sorted], a));
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    head.append(element("th", "store"));
    panels.forEach((panel, number) => {
      const words = [panel.dataset, panel.state, panel.work, panel.workers ? `${panel.workers} workers` : ""];
      const button = element("button", words.filter(Boolean).join(", "));
      button.type = "button";
      button.addEventListener("click", () => { sorted = sorted === number ? -1 : number; draw(); });
      const title = document.createElement("th");
      if (sorted === number) title.setAttribute("aria-sort", "descending");
      title.append(button);
      head.append(title);
    });
    const body = table.createTBody();
    for (const store of stores) {
      const row = body.insertRow();
      const name = element("th", data.labels[store]);
      name.scope = "row";
      row.append(name, ...panels.map((panel) => cellOf(panel, store)));
    }
    const scroll = element("div", "", "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Every store in every setting");
    scroll.append(table);
    const told = element("p", `${panels.length} of ${data.panels.length} settings; samples/s, and times the base.`, "notes");
    place.replaceChildren(scroll, told);
    const kept = new URLSearchParams();
    for (const name of Object.keys(choices)) {
      if (!["all", "usual"].includes(form.elements[name].value)) kept.set(name, form.elements[name].value);
    }
    if (sorted >= 0) kept.set("sort", sorted);
    history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname + location.search);
  }

  form.addEventListener("change", () => { sorted = -1; draw(); });
  draw();
}
if (document.getElementById("data")) explore();
