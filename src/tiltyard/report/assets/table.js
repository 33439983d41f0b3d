/* The table of episodes, by Tabulator: it filters, sorts and pages. */
tilt.filters = { text: "", run: "", phase: "", ending: "", outcome: "" };

tilt.episodes = function (runs) {
  if (!runs.some((run) => run.episodes)) {
    return tilt.section("episodes", "Episodes", tilt.el("p", { class: "note" }, "This run learns from rows: it plays no episodes."));
  }
  const bar = tilt.el("form", { class: "filters", role: "search", "aria-label": "Filter the episodes" });
  bar.addEventListener("submit", (event) => event.preventDefault());
  const count = tilt.el("p", { class: "note", id: "count", role: "status" }, "Unpacking the episodes…");
  const place = tilt.el("div", { id: "table" });
  tilt.filling = tilt.fillTable(runs, bar, count, place);
  return tilt.section("episodes", "Episodes", bar, count, place);
};

tilt.fillTable = async function (runs, bar, count, place) {
  await tilt.parsed;
  tilt.byRun = await Promise.all(runs.map((run, number) => tilt.rows(number)));
  const rows = tilt.byRun.flat();
  tilt.buildFilters(bar, runs, rows);
  const table = new Tabulator(place, {
    data: rows, columns: tilt.columns(runs), layout: "fitColumns", responsiveLayout: "hide",
    pagination: true, paginationSize: 25, paginationSizeSelector: [25, 50, 100, 250],
    paginationButtonCount: 3, placeholder: "No episode fits the filter.",
    columnDefaults: { headerSortTristate: true, resizable: false, headerHozAlign: "left" },
  });
  tilt.table = table;
  await new Promise((resolve) => table.on("tableBuilt", resolve));
  const say = () => { count.textContent = `${tilt.plural(table.getDataCount("active"), "episode")} of ${rows.length.toLocaleString("en-US")}`; };
  table.on("dataFiltered", (filters, found) => { count.textContent = `${tilt.plural(found.length, "episode")} of ${rows.length.toLocaleString("en-US")}`; });
  table.on("rowClick", (event, row) => { if (!event.target.closest("a")) location.hash = tilt.address(row.getData()); });
  say();
  tilt.reachable(place);
  tilt.keepFocus(table, place);
};

/* `tilt.held` is the address of the link that has the focus, or gets it once its row is drawn. */
tilt.holdFocus = function (address) {
  const link = document.querySelector(`#table a[href="${address}"]`);
  if (link) link.focus({ preventScroll: true });
  tilt.held = address;
};

/* The table makes its rows anew when it comes into view or its width changes; the link that had the focus keeps it. */
tilt.keepFocus = function (table, place) {
  document.addEventListener("focusin", (event) => { tilt.held = place.contains(event.target) ? event.target.getAttribute("href") : null; });
  document.addEventListener("pointerdown", () => { tilt.held = null; }, true);
  table.on("renderComplete", () => { if (tilt.held && document.activeElement === document.body) tilt.holdFocus(tilt.held); });
};

/* Headers sort from the keyboard as they do from the mouse. */
tilt.reachable = function (place) {
  for (const header of place.querySelectorAll(".tabulator-col.tabulator-sortable")) {
    header.tabIndex = 0;
    header.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      (header.querySelector(".tabulator-col-content") || header).click();
    });
  }
};

tilt.address = (row) => `#episode=${row.run}.${row.index}`;

tilt.columns = function (runs) {
  const link = (cell) => {
    const row = cell.getData();
    return tilt.el("a", { href: tilt.address(row) }, runs.length > 1 ? tilt.key(row.run) : null, row.id);
  };
  const ending = (cell) => tilt.badge(cell.getValue(), runs[cell.getData().run].failed.includes(cell.getValue()));
  const figure = (digits) => (cell) => document.createTextNode(tilt.number(cell.getValue(), digits));
  const reward = (cell) => document.createTextNode(tilt.fixed(cell.getValue(), 2));
  const text = (cell) => document.createTextNode(cell.getValue() ?? "");
  const success = (cell) => {
    const value = cell.getValue();
    if (value === null || value === undefined) return document.createTextNode("–");
    return tilt.el("span", { class: value ? "yes" : "no" }, value ? "✓ yes" : "✗ no");
  };
  const number = { hozAlign: "right", headerHozAlign: "right", sorter: "number", sorterParams: { alignEmptyValues: "bottom" } };
  return [
    { title: "Episode", field: "id", formatter: link, sorter: "string", minWidth: 120, responsive: 0, widthGrow: 1.4 },
    { title: "Phase", field: "phase", formatter: (cell) => document.createTextNode(tilt.words(cell.getValue())), minWidth: 100, responsive: 3 },
    { title: "Step", field: "step", formatter: figure(0), ...number, minWidth: 76, widthGrow: 0.5, responsive: 2 },
    { title: "Task", field: "task", formatter: text, sorter: "alphanum", minWidth: 100, responsive: 6 },
    { title: "Reward", field: "reward", formatter: reward, ...number, minWidth: 94, widthGrow: 0.6, responsive: 0 },
    { title: "Success", field: "success", formatter: success, sorter: "boolean", minWidth: 100, widthGrow: 0.6, responsive: 2 },
    { title: "Turns", field: "turns", formatter: figure(0), ...number, minWidth: 84, widthGrow: 0.5, responsive: 4 },
    { title: "Tokens", field: "tokens", formatter: figure(0), ...number, minWidth: 92, widthGrow: 0.5, responsive: 5 },
    { title: "Ending", field: "ending", formatter: ending, sorter: "string", minWidth: 110, responsive: 1 },
    { title: "Last words", field: "last", formatter: text, headerSort: false, minWidth: 160, widthGrow: 2.2, responsive: 5 },
  ];
};

tilt.buildFilters = function (bar, runs, rows) {
  const counts = (name) => {
    const found = new Map();
    for (const row of rows) found.set(row[name], (found.get(row[name]) || 0) + 1);
    return [...found].map(([value, count]) => [value, `${tilt.words(value)} (${count.toLocaleString("en-US")})`]);
  };
  const outcomes = [["yes", "succeeded"], ["no", "did not succeed"], ["failed", "failed: no score"], ["page", "with messages here"]];
  bar.append(tilt.textFilter(), ...[
    runs.length > 1 ? ["run", "Run", runs.map((run, number) => [String(number), run.name])] : null,
    ["phase", "Phase", counts("phase")], ["ending", "Ending", counts("ending")], ["outcome", "Outcome", outcomes],
  ].filter(Boolean).map(([name, title, options]) => tilt.choice(name, title, options)));
  const reset = tilt.el("button", { type: "reset" }, "Show all");
  bar.append(reset);
  bar.addEventListener("reset", () => {
    for (const name of Object.keys(tilt.filters)) tilt.filters[name] = "";
    tilt.applyFilters(runs);
  });
  bar.addEventListener("input", (event) => {
    tilt.filters[event.target.name] = event.target.value;
    tilt.applyFilters(runs);
  });
};

tilt.textFilter = () => tilt.el("label", { class: "wide" }, tilt.el("span", {}, "Search"),
  tilt.el("input", { type: "search", name: "text", placeholder: "id, task or last words", autocomplete: "off", spellcheck: "false" }));

tilt.choice = (name, title, options) => tilt.el("label", {}, tilt.el("span", {}, title),
  tilt.el("select", { name }, tilt.el("option", { value: "" }, "all"), options.map(([value, text]) => tilt.el("option", { value }, text))));

tilt.applyFilters = function (runs) {
  const { text, run, phase, ending, outcome } = tilt.filters;
  const wanted = text.trim().toLowerCase();
  const failed = (row) => runs[row.run].failed.includes(row.ending);
  const fits = (row) => (!run || String(row.run) === run) && (!phase || row.phase === phase) && (!ending || row.ending === ending) &&
    (!outcome || (outcome === "failed" ? failed(row) : outcome === "page" ? row.page !== null : outcome === "yes" ? row.success === true : row.success !== true && !failed(row))) &&
    (!wanted || `${row.id} ${row.task} ${row.last} ${row.group}`.toLowerCase().includes(wanted));
  tilt.table.setFilter(fits);
};
