/* The head of the page, the evaluations with their intervals, how episodes ended, and what two manifests differ in. */
tilt.facts = function (runs) {
  return runs.map((run, number) => tilt.el("section", { class: "facts", "aria-label": `Figures of ${run.name}` },
    runs.length > 1 ? tilt.el("h2", { class: "of-run" }, tilt.key(number), run.name) : null,
    tilt.el("dl", {}, run.facts.map((fact) => tilt.el("div", { class: `fact ${fact.tone}` },
      tilt.el("dt", {}, fact.label), tilt.el("dd", { class: "value" }, fact.value), tilt.el("dd", { class: "fact-note" }, fact.note)))),
    run.notes.length ? tilt.el("ul", { class: "notes" }, run.notes.map((note) => tilt.el("li", {}, note))) : null));
};

tilt.scores = function (runs) {
  const named = new Map();
  runs.forEach((run, number) => {
    for (const figure of run.scores) {
      if (!named.has(figure.name)) named.set(figure.name, { ...figure, rows: [] });
      named.get(figure.name).rows.push(...figure.rows.map((row) => ({ ...row, run: number })));
    }
  });
  if (!named.size) return null;
  const body = [...named.values()].map((figure) => tilt.scoreRows(figure, runs));
  const heads = ["Evaluation", "Mean", "95 % interval", "n", ""];
  const table = tilt.el("table", { class: "scores" },
    tilt.el("thead", {}, tilt.el("tr", {}, heads.map((head) => head
      ? tilt.el("th", { scope: "col" }, head) : tilt.el("th", { scope: "col", class: "track-head" }, tilt.el("span", { class: "hidden" }, "Drawn"))))),
    body);
  return tilt.section("scores", "Evaluations", table);
};

tilt.scoreRows = function (figure, runs) {
  const ends = figure.rows.flatMap((row) => [row.low ?? row.mean, row.high ?? row.mean]);
  let low = figure.share ? 0 : Math.min(...ends), high = figure.share ? 1 : Math.max(...ends);
  if (!figure.share) { const room = (high - low || 1) * 0.05; low -= room; high += room; }
  const rows = figure.rows.map((row) => tilt.el("tr", {},
    tilt.el("th", { scope: "row" }, runs.length > 1 ? tilt.key(row.run) : null, tilt.phase(row), runs.length > 1 ? tilt.el("span", { class: "hidden" }, ` of ${runs[row.run].name}`) : null),
    tilt.el("td", {}, tilt.fixed(row.mean, 3)),
    tilt.el("td", {}, row.low === null ? "–" : `${tilt.fixed(row.low, 3)} to ${tilt.fixed(row.high, 3)}`),
    tilt.el("td", {}, tilt.number(row.n)),
    tilt.el("td", { class: "track-cell" }, tilt.track(row, low, high))));
  const scale = tilt.el("span", { class: "scale", "aria-hidden": "true" }, tilt.el("span", {}, tilt.number(low, 2)), tilt.el("span", {}, tilt.number(high, 2)));
  const head = tilt.el("tr", { class: "of-figure" }, tilt.el("th", { scope: "rowgroup", colspan: "4" }, figure.title), tilt.el("td", { class: "track-cell" }, scale));
  return tilt.el("tbody", {}, head, rows);
};

tilt.phase = (row) => ({ eval_before: "before training", eval_after: "after training" }[row.phase] ||
  (/^eval_\d+$/.test(row.phase) ? `after step ${row.step}` : tilt.words(row.phase)));

tilt.track = function (row, low, high) {
  const at = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const track = tilt.el("div", { class: `track track-${tilt.keys[row.run]}`, "aria-hidden": "true" });
  if (row.low !== null) {
    const bar = tilt.el("span", { class: "interval" });
    bar.style.left = at(row.low);
    bar.style.width = `${(100 * (row.high - row.low)) / (high - low)}%`;
    track.append(bar);
  }
  const dot = tilt.el("span", { class: "dot" });
  dot.style.left = at(row.mean);
  track.append(dot);
  return track;
};

tilt.endings = function (runs) {
  const names = [...new Set(runs.flatMap((run) => run.endings.map((each) => each.name)))];
  if (!names.length) return null;
  const totals = runs.map((run) => run.endings.reduce((sum, each) => sum + each.count, 0));
  const rows = names.map((name) => {
    const found = runs.map((run) => run.endings.find((each) => each.name === name));
    const meaning = runs.map((run) => run.meanings[name]).find(Boolean) || "";
    const error = found.map((each) => each && each.error).find(Boolean);
    return tilt.el("tr", {},
      tilt.el("th", { scope: "row" }, tilt.badge(name, runs.some((run) => run.failed.includes(name)))),
      found.map((each, number) => tilt.el("td", { class: "share" }, tilt.share(each ? each.count : 0, totals[number], number))),
      tilt.el("td", { class: "meaning" }, meaning, error ? tilt.el("p", { class: "error" }, "Such as: ", error.slice(0, 300)) : null));
  });
  const heads = tilt.el("tr", {}, tilt.el("th", { scope: "col" }, "Ending"),
    runs.map((run, number) => tilt.el("th", { scope: "col" }, runs.length > 1 ? [tilt.key(number), run.name] : "Episodes")), tilt.el("th", { scope: "col" }, "What it means"));
  return tilt.section("endings", "How episodes ended", tilt.el("table", { class: "endings" }, tilt.el("thead", {}, heads), tilt.el("tbody", {}, rows)));
};

tilt.share = function (count, total, run) {
  const bar = tilt.el("span", { class: `amount amount-${tilt.keys[run]}`, "aria-hidden": "true" });
  bar.style.width = `${total ? Math.max(count ? 1 : 0, (100 * count) / total) : 0}%`;
  return tilt.el("div", { class: "amount-of" }, tilt.el("span", {}, count.toLocaleString("en-US")), tilt.el("span", { class: "amount-track" }, bar));
};

tilt.badge = (name, failed) => tilt.el("span", { class: `badge${failed ? " failed" : ["done", "stop"].includes(name) ? " whole" : " cut"}` }, tilt.words(name));

tilt.config = function (runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
  const differ = (name) => runs.some((run) => run.config[name] !== runs[0].config[name]);
  const table = (chosen, caption) => tilt.el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption },
    tilt.el("table", { class: "config" }, tilt.el("caption", { class: "hidden" }, caption),
      tilt.el("thead", {}, tilt.el("tr", {}, tilt.el("th", { scope: "col" }, "Key"), runs.map((run, number) =>
        tilt.el("th", { scope: "col" }, runs.length > 1 ? [tilt.key(number), run.name] : "Value")))),
      tilt.el("tbody", {}, chosen.map((name) => tilt.el("tr", {}, tilt.el("th", { scope: "row" }, name), runs.map((run) => tilt.el("td", {}, run.config[name] ?? "–")))))));
  const section = tilt.section("manifest", runs.length > 1 ? "What the manifests differ in" : "The manifest");
  if (runs.length > 1) {
    const different = names.filter(differ);
    section.append(different.length ? table(different, "Keys that differ") : tilt.el("p", { class: "note" }, "Nothing."));
  }
  section.append(tilt.later(`All ${names.length} keys`, () => table(names, "All keys")));
  const verdicts = runs.filter((run) => run.verdict);
  if (verdicts.length) section.append(tilt.el("p", { class: "note" }, verdicts.map((run) => tilt.el("span", { class: "verdict" }, `Tokens${runs.length > 1 ? ` of ${run.name}` : ""}: ${run.verdict}.`))));
  return section;
};
