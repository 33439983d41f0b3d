/* The curves: one small chart a figure, drawn by uPlot, with the figures of both runs in it. */
tilt.charts = [];

tilt.curves = function (runs) {
  if (!runs.some((run) => run.steps.length)) return null;
  const named = new Map();
  runs.forEach((run, number) => {
    for (const curve of run.curves) {
      if (!named.has(curve.name)) named.set(curve.name, { ...curve, by: [] });
      named.get(curve.name).by[number] = curve.values;
    }
  });
  const all = [...named.values()];
  const varies = (curve) => curve.by.some((values) => values && values.some((value) => value !== null));
  const shown = all.filter(varies);
  const main = tilt.el("div", { class: "charts" });
  const section = tilt.section("curves", "Curves", tilt.evaluationLegend(runs), main);
  for (const curve of shown.filter((each) => each.main)) main.append(tilt.chart(curve, runs));
  const rest = shown.filter((each) => !each.main);
  if (rest.length) section.append(tilt.later(`${tilt.plural(rest.length, "more figure")}`, () => {
    return tilt.el("div", { class: "charts" }, rest.map((curve) => tilt.chart(curve, runs)));
  }));
  section.append(tilt.later("All steps as a table", () => tilt.stepTable(runs, shown)));
  return section;
};

/* What is folded away is made when it is opened. */
tilt.later = function (title, make) {
  const details = tilt.el("details", { class: "later" }, tilt.el("summary", {}, title));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) {
      details.append(make());
      tilt.drawCharts();
    }
  });
  return details;
};

tilt.evaluationLegend = function (runs) {
  if (!runs.some((run) => run.scores.length)) return null;
  return tilt.el("p", { class: "note" }, "A line is what the training steps say; a ring, with its 95 % interval, is an evaluation on what was held out.");
};

tilt.chart = function (curve, runs) {
  const place = tilt.el("div", { class: "plot", role: "img", "aria-label": tilt.curveWords(curve, runs) });
  const value = tilt.el("span", { class: "reading" });
  const caption = tilt.el("figcaption", {},
    tilt.el("span", { class: "chart-title" }, curve.title), value,
    curve.note ? tilt.el("span", { class: "chart-note" }, curve.note) : null);
  const figure = tilt.el("figure", { class: "chart" }, caption, place);
  tilt.charts.push({ curve, runs, place, value, plot: null });
  return figure;
};

tilt.curveWords = function (curve, runs) {
  return runs.map((run, number) => {
    const values = (curve.by[number] || []).filter((each) => each !== null);
    if (!values.length) return `${run.name} has none`;
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    return `${curve.title}${runs.length > 1 ? ` of ${run.name}` : ""}: from ${tilt.number(values[0])} to ` +
      `${tilt.number(values[values.length - 1])}, between ${tilt.number(low)} and ${tilt.number(high)}`;
  }).join("; ");
};

/* Charts are drawn once they have a width, and again when it or the colour scheme changes. */
tilt.drawCharts = function () {
  for (const chart of tilt.charts) {
    const width = chart.place.clientWidth;
    if (!width) continue;
    if (chart.plot) chart.plot.setSize({ width, height: 170 });
    else chart.plot = tilt.draw(chart, width);
  }
};

tilt.draw = function (chart, width) {
  const { curve, runs } = chart;
  const scores = runs.map((run) => (run.scores.find((each) => each.name === curve.name) || { rows: [] }).rows);
  const steps = [...new Set([...runs.flatMap((run) => run.steps), ...scores.flat().map((row) => row.step || 0)])];
  steps.sort((a, b) => a - b);
  const series = [{}], data = [steps];
  runs.forEach((run, number) => {
    const at = new Map(run.steps.map((step, index) => [step, (curve.by[number] || [])[index] ?? null]));
    data.push(steps.map((step) => (at.has(step) ? at.get(step) : undefined)));
    series.push({
      label: run.name, width: 2, spanGaps: false,
      stroke: () => tilt.color(`--run-${tilt.keys[number]}`),
      points: { show: run.steps.length < 40, size: 5, fill: () => tilt.color(`--run-${tilt.keys[number]}`) },
    });
  });
  const options = {
    width, height: 170, series, legend: { show: false }, padding: [10, 10, 0, 0],
    scales: { x: { time: false, range: () => tilt.stepRange(runs) }, y: { range: (u, low, high) => tilt.valueRange(low, high, scores, curve) } },
    axes: [tilt.axis({ space: 50, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] }),
      tilt.axis({ space: 32, size: 56, values: (u, ticks) => ticks.map(tilt.tick) })],
    cursor: { sync: { key: "steps" }, y: false, points: { size: 8 }, drag: { x: false, y: false } },
    hooks: { draw: [(u) => tilt.drawScores(u, scores)], setCursor: [(u) => tilt.showReading(chart, u)] },
  };
  const plot = new uPlot(options, data, chart.place);
  tilt.showReading(chart, plot);
  return plot;
};

tilt.axis = (more) => ({
  stroke: () => tilt.color("--muted"), font: "12px system-ui, sans-serif",
  grid: { stroke: () => tilt.color("--line"), width: 1 }, ticks: { show: false }, ...more,
});

tilt.tick = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(2).replace(/\.?0+e/, "e") : String(+value.toPrecision(6)));

/* All charts have the same steps below them, those of the evaluations too. */
tilt.stepRange = function (runs) {
  const steps = runs.flatMap((run) => [...run.steps, ...run.scores.flatMap((figure) => figure.rows.map((row) => row.step || 0))]);
  const low = steps.reduce((a, b) => Math.min(a, b)), high = steps.reduce((a, b) => Math.max(a, b));
  return low === high ? [low - 1, high + 1] : [low, high + (high - low) * 0.02];
};

tilt.valueRange = function (low, high, scores, curve) {
  const ends = scores.flat().flatMap((row) => [row.low ?? row.mean, row.high ?? row.mean]);
  if (low !== null && low !== undefined) ends.push(low, high);
  const share = /success|valid|accuracy|_share$|clip/.test(curve.name);
  if (share) ends.push(0);
  let bottom = ends.reduce((a, b) => Math.min(a, b), Infinity), top = ends.reduce((a, b) => Math.max(a, b), -Infinity);
  if (bottom === top) return share ? [0, top || 1] : [bottom - (Math.abs(bottom) * 0.1 || 1), top + (Math.abs(top) * 0.1 || 1)];
  const room = (top - bottom) * 0.08;
  return [share && bottom >= 0 ? 0 : bottom - room, share && top <= 1 && top > 0.5 ? 1.04 : top + room];
};

tilt.drawScores = function (u, scores) {
  const context = u.ctx, ratio = devicePixelRatio;
  context.save();
  scores.forEach((rows, number) => {
    context.strokeStyle = tilt.color(`--run-${tilt.keys[number]}`);
    context.fillStyle = tilt.color("--surface");
    context.lineWidth = 1.5 * ratio;
    for (const row of rows) {
      const x = u.valToPos(row.step || 0, "x", true);
      if (row.low !== null && row.high !== null) {
        context.beginPath();
        context.moveTo(x, u.valToPos(row.low, "y", true));
        context.lineTo(x, u.valToPos(row.high, "y", true));
        context.stroke();
      }
      context.beginPath();
      context.arc(x, u.valToPos(row.mean, "y", true), 4 * ratio, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
    }
  });
  context.restore();
};

tilt.showReading = function (chart, u) {
  const under = u.cursor.idx;
  const parts = chart.runs.map((run, number) => {
    const values = u.data[number + 1];
    let index = under;
    if (index === null || index === undefined) for (index = values.length - 1; index > 0 && typeof values[index] !== "number";) index--;
    const value = values[index];
    return [chart.runs.length > 1 ? tilt.key(number) : null, tilt.number(typeof value === "number" ? value : null), " "];
  });
  const at = under === null || under === undefined ? "last" : `step ${u.data[0][under]}`;
  chart.value.replaceChildren(tilt.el("span", { class: "at" }, `${at} `), ...parts.flat().filter((each) => each !== null));
};

tilt.stepTable = function (runs, shown) {
  const tables = runs.map((run, number) => {
    const curves = shown.filter((curve) => curve.by[number]);
    const head = tilt.el("tr", {}, tilt.el("th", { scope: "col" }, "step"), curves.map((curve) => tilt.el("th", { scope: "col" }, curve.name)));
    const rows = run.steps.map((step, index) => tilt.el("tr", {}, tilt.el("th", { scope: "row" }, step),
      curves.map((curve) => tilt.el("td", {}, tilt.number(curve.by[number][index])))));
    return tilt.el("table", { class: "figures" }, tilt.el("caption", {}, `Steps of ${run.name}`), tilt.el("thead", {}, head), tilt.el("tbody", {}, rows));
  });
  return tilt.el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "All steps" }, tables);
};

addEventListener("resize", () => tilt.drawCharts());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of tilt.charts) if (chart.plot) chart.plot.redraw(false);
});
