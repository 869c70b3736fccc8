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
function markCut() {
  for (const region of document.querySelectorAll(".scroll")) {
    region.classList.toggle("cut", region.scrollWidth > region.clientWidth + 1);
  }
}
addEventListener("resize", markCut);
addEventListener("toggle", markCut, true);

// The matrix: filters, a base to compare with, columns to sort by, and cells that open their tables below it.
// The address keeps the view. Without this script the page shows all columns, and cells are links to their tables.
function explore() {
  const { columns, stores } = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("filters");
  const table = document.getElementById("matrix");
  const told = document.getElementById("told");
  const opened = document.getElementById("opened");
  const labels = Object.fromEntries(stores.map((store) => [store.name, store.label]));
  const rows = new Map([...table.tBodies[0].rows].map((row) => [row.dataset.store, row]));
  const heads = [...table.tHead.rows[0].cells];
  const names = stores.map((store) => store.name);
  const filters = [...form.elements].map((one) => one.name).filter((name) => name !== "base" && name in columns[0]);
  const choices = { base: names, ...(form.elements.store && { store: names }) };
  for (const name of filters) choices[name] = [...new Set(columns.map((column) => column[name]))];
  let view = {}; // the filters, several values joined by "|"; base, sort (column, from 1; 0: the store), down, open (cell)

  for (const [name, options] of Object.entries(choices)) {
    for (const option of options) form.elements[name].add(new Option(labels[option] ?? option, option));
    form.elements[name].closest("label").hidden = options.length < 2;
  }

  function read() {
    view = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    for (const [name, options] of Object.entries(choices)) {
      const wanted = (view[name] ?? "").split("|").filter((option) => options.includes(option));
      view[name] = wanted.join("|");
      for (const option of form.elements[name].options) option.selected = (wanted.length ? wanted : [""]).includes(option.value);
    }
    if (!heads[view.sort]) delete view.sort;
  }

  function write() {
    const kept = new URLSearchParams(Object.entries(view).filter(([, value]) => value !== undefined && value !== ""));
    history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname + location.search);
  }

  const short = (ratio) => (ratio >= 100 ? String(Math.round(Number(ratio.toPrecision(2)))) : ratio.toPrecision(2));

  function compare(link, own, base) {
    const [ratio, verdict] = own.ratios[base] ?? [];
    const words = link.querySelector("small");
    link.className = ratio === undefined ? "" : verdict;
    words.textContent = ratio === undefined ? "" : `${short(ratio)}×${verdict === "undecided" ? "?" : ""}`;
    link.title = ratio === undefined ? "" : `${verdict}: ${short(ratio)} times ${labels[base]}`;
    link.style.setProperty("--strength", `${Math.min(55, 12 + 14 * Math.abs(Math.log2(ratio || 1)))}%`);
  }

  function order() {
    if (view.sort === undefined) return stores.map((store) => store.name);
    const sign = view.down ? -1 : 1;
    if (view.sort === "0") {
      return Object.keys(labels).sort((a, b) => sign * labels[a].localeCompare(labels[b]));
    }
    const rates = columns[view.sort - 1].stores;
    const rate = (name) => rates[name]?.rate ?? null;
    return Object.keys(labels).sort((a, b) => {
      if (rate(a) === null || rate(b) === null) return (rate(a) === null) - (rate(b) === null);
      return sign * (rate(a) - rate(b));
    });
  }

  const chosen = (name, value) => !view[name] || view[name].split("|").includes(value);

  function draw() {
    const shown = columns.map((column) => filters.every((name) => chosen(name, column[name])));
    heads.forEach((head, place) => {
      if (place) head.hidden = !shown[place - 1];
      if (String(place) === view.sort) head.setAttribute("aria-sort", view.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    for (const [name, row] of rows) {
      columns.forEach((column, place) => {
        const cell = row.cells[place + 1];
        cell.hidden = !shown[place];
        if (column.stores[name]) compare(cell.firstElementChild, column.stores[name], view.base || column.base);
      });
      row.hidden = !chosen("store", name) || !columns.some((column, place) => shown[place] && column.stores[name]);
    }
    table.tBodies[0].append(...order().map((name) => rows.get(name)));
    const count = shown.filter(Boolean).length;
    told.textContent = count ? `${count} of ${columns.length} settings.` : "No setting has all of these: choose “all” again.";
    open();
    markCut();
  }

  function open() {
    for (const link of table.querySelectorAll("[aria-expanded]")) link.setAttribute("aria-expanded", "false");
    const [anchor, store] = (view.open ?? "").split(" ");
    const tables = [anchor, `${anchor}-io`].map((id) => document.getElementById(id)).filter(Boolean);
    opened.hidden = !tables.length;
    opened.querySelector("div").replaceChildren(...tables.map((one) => {
      const copy = one.cloneNode(true);
      copy.removeAttribute("id");
      for (const row of copy.querySelectorAll("tbody tr")) {
        row.classList.toggle("chosen", row.dataset.store === labels[store]);
      }
      return copy;
    }));
    const link = [...rows.get(store)?.querySelectorAll("a") ?? []].find((one) => one.hash === `#${anchor}`);
    if (tables.length) link?.setAttribute("aria-expanded", "true");
  }

  form.addEventListener("change", () => {
    for (const name of Object.keys(choices)) {
      view[name] = [...form.elements[name].selectedOptions].map((option) => option.value).filter(Boolean).join("|");
    }
    draw();
    write();
  });
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    // The first press sorts with the highest rate on top, the second turns it round, the third gives the first order.
    const own = view.sort === String(place);
    const first = place ? "1" : undefined;
    const again = own && (view.down || undefined) !== first;
    view.sort = again ? undefined : String(place);
    view.down = again ? undefined : own ? (first ? undefined : "1") : first;
    draw();
    write();
  }));
  table.tBodies[0].addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link?.hash) return;
    event.preventDefault();
    const wanted = `${link.hash.slice(1)} ${link.closest("tr").dataset.store}`;
    view.open = view.open === wanted ? undefined : wanted;
    open();
    write();
    if (view.open) opened.focus({ preventScroll: true });
    if (view.open) opened.scrollIntoView({ block: "nearest" });
  });
  opened.querySelector("button").addEventListener("click", () => {
    const link = table.querySelector("[aria-expanded=true]");
    view.open = undefined;
    open();
    write();
    link?.focus();
  });
  addEventListener("hashchange", () => { read(); draw(); });
  for (const link of table.querySelectorAll("td a")) link.setAttribute("aria-expanded", "false");
  form.hidden = false;
  read();
  draw();
}
if (document.getElementById("data")) explore();
markCut();
