/* Puts the page together, and goes between the overview and the episodes. */
tilt.start = async function () {
  const main = document.getElementById("main");
  const { runs } = await tilt.unpack("runs");
  tilt.overview = tilt.el("div", { id: "overview" });
  tilt.detail = tilt.el("div", { id: "detail", hidden: true });
  main.replaceChildren(tilt.overview, tilt.detail);
  tilt.overview.append(...[tilt.el("div", { class: runs.length > 1 ? "pair" : "" }, tilt.facts(runs)), tilt.curves(runs), tilt.scores(runs)].filter(Boolean));
  tilt.drawCharts();
  const episodes = tilt.episodes(runs);
  tilt.overview.append(...[tilt.endings(runs), episodes, tilt.config(runs)].filter(Boolean));
  await tilt.filling;
  addEventListener("hashchange", () => tilt.go(runs));
  await tilt.go(runs);
  performance.mark("tiltyard-ready");
  document.documentElement.dataset.ready = "true";
};

tilt.go = async function (runs) {
  const found = /^#episode=(\d+)\.(\d+)$/.exec(location.hash);
  if (!found) {
    const back = !tilt.detail.hidden;
    tilt.overview.hidden = false;
    tilt.detail.hidden = true;
    if (!back) return;
    scrollTo(0, tilt.scrolled || 0);
    tilt.drawCharts();
    tilt.holdFocus(tilt.opened);
    return;
  }
  if (tilt.detail.hidden) tilt.scrolled = scrollY;
  tilt.opened = location.hash;
  const page = await tilt.episodePage(runs, Number(found[1]), Number(found[2]));
  if (tilt.opened !== location.hash) return;
  tilt.detail.replaceChildren(page);
  tilt.overview.hidden = true;
  tilt.detail.hidden = false;
  scrollTo(0, 0);
  for (const tokens of tilt.detail.querySelectorAll(".tokens")) {
    const first = tokens.querySelector(".sampled");
    if (first) tokens.scrollTop = first.offsetTop - tokens.clientHeight / 2;
  }
  const heading = tilt.detail.querySelector("h2");
  if (heading) heading.focus({ preventScroll: true });
};

tilt.start().catch((error) => {
  const main = document.getElementById("main");
  main.append(tilt.el("p", { class: "error-box", role: "alert" }, `The report cannot be shown: ${error.message}`));
  throw error;
});
