/* The page of one episode: what was said, what it earned, why it ended, and the tokens. */
tilt.MAX_TOKENS = 20000;

tilt.episodePage = async function (runs, run, index) {
  const row = tilt.byRun[run] && tilt.byRun[run][index];
  if (!row) return tilt.el("p", { class: "note" }, "There is no such episode.");
  const same = runs.length > 1 ? tilt.byRun[1 - run].find((each) => each.phase === row.phase && each.id === row.id) : null;
  const pair = same ? (run === 0 ? [row, same] : [same, row]) : [row];
  const parts = await Promise.all(pair.map((each) => tilt.episode(runs, each, pair.length > 1)));
  return tilt.el("div", {}, tilt.episodeBar(row), tilt.el("div", { class: pair.length > 1 ? "pair" : "" }, parts));
};

tilt.episodeBar = function (row) {
  const order = tilt.table.getRows("active").map((each) => each.getData());
  const at = order.findIndex((each) => each.run === row.run && each.index === row.index);
  const step = (to, words) => (at >= 0 && order[to] ? tilt.el("a", { class: "button", href: tilt.address(order[to]) }, words) : tilt.el("span", { class: "button off" }, words));
  return tilt.el("nav", { class: "bar", "aria-label": "Episodes" }, tilt.el("a", { class: "button", href: "#" }, "← All episodes"),
    tilt.el("span", { class: "spread" }), step(at - 1, "← Previous"), step(at + 1, "Next →"));
};

tilt.episode = async function (runs, row, paired) {
  const run = runs[row.run], failed = run.failed.includes(row.ending);
  const head = tilt.el("header", {}, tilt.el("h2", { tabindex: "-1" }, runs.length > 1 ? tilt.key(row.run) : null, `Episode ${row.id}`),
    runs.length > 1 ? tilt.el("p", { class: "note" }, run.name) : null,
    tilt.el("p", { class: "why" }, tilt.badge(row.ending, failed), " ", run.meanings[row.ending] || ""));
  const article = tilt.el("article", { class: "episode" }, head);
  const page = row.page === null ? null : await tilt.page(row.run, row.page);
  article.append(tilt.episodeFacts(row, page));
  if (!page) {
    article.append(tilt.el("p", { class: "note" }, "Its messages and tokens are not in this page: they are in trajectories.jsonl of the run folder."));
    return article;
  }
  if (page.error) article.append(tilt.el("div", { class: "error-box" }, tilt.el("h3", {}, "Error"), tilt.el("pre", {}, page.error)));
  if (page.untrainable) article.append(tilt.el("p", { class: "note" }, `Not trained on: ${page.untrainable}`));
  article.append(tilt.el("h3", {}, "Messages"), tilt.messages(page));
  const texts = await tilt.unpack(`texts-${row.run}`);
  article.append(tilt.el("h3", {}, "Tokens"), tilt.tokens(page, texts));
  article.append(tilt.later("Info and task", () => tilt.el("pre", { class: "code" }, JSON.stringify({ info: page.info, task: page.task, tools: page.tools }, null, 2))));
  return article;
};

tilt.episodeFacts = function (row, page) {
  const facts = [["Reward", tilt.fixed(row.reward, 3)], ["Success", row.success === null ? "–" : row.success ? "✓ yes" : "✗ no"],
    ["Turns", tilt.number(row.turns)], ["Sampled tokens", tilt.number(row.tokens)], ["Seconds", tilt.number(row.seconds, 1)],
    ["Phase", tilt.words(row.phase)], ["Step", tilt.number(row.step)], ["Task", row.task], ["Group", row.group ?? "–"], ["Attempt", tilt.number(row.attempt)]];
  if (page && page.start_reward) facts.splice(1, 0, ["Reward of the reset", tilt.number(page.start_reward, 3)]);
  return tilt.el("dl", { class: "small-facts" }, facts.map(([name, value]) => tilt.el("div", {}, tilt.el("dt", {}, name), tilt.el("dd", {}, value))));
};

tilt.messages = function (page) {
  const said = page.messages.filter((message) => message.role === "assistant").length;
  let turn = page.rewards.length - said;
  const list = tilt.el("ol", { class: "messages" });
  for (const message of page.messages) {
    const mine = message.role === "assistant" ? turn++ : -1;
    const role = ["system", "user", "assistant", "tool"].includes(message.role) ? message.role : "other";
    const head = tilt.el("p", { class: "message-head" }, tilt.el("span", { class: "role" }, message.role, message.name ? ` · ${message.name}` : ""));
    if (role === "assistant") head.append(mine >= 0 ? tilt.turnReward(mine, page.rewards[mine]) : tilt.el("span", { class: "given" }, "an example, not sampled"));
    list.append(tilt.el("li", { class: `message ${role}` }, head, ...tilt.messageBody(message)));
  }
  return list;
};

tilt.turnReward = function (turn, reward) {
  const tone = reward === null ? "" : reward > 0 ? " good" : reward < 0 ? " bad" : "";
  const value = reward === null ? "not scored" : `${reward > 0 ? "+" : ""}${tilt.fixed(reward, 2)}`;
  return tilt.el("span", { class: `turn-reward${tone}` }, `turn ${turn + 1}: ${value}`);
};

tilt.messageBody = function (message) {
  const body = [];
  if (message.reasoning_content) body.push(tilt.el("details", { class: "reasoning", open: true }, tilt.el("summary", {}, "Reasoning"), tilt.el("pre", {}, tilt.asText(message.reasoning_content))));
  const text = tilt.asText(message.content);
  if (text) body.push(tilt.el("pre", {}, text));
  for (const call of message.tool_calls || []) {
    const made = call.function || {};
    body.push(tilt.el("div", { class: "call" }, tilt.el("p", {}, "calls ", tilt.el("code", {}, made.name)), tilt.el("pre", { class: "code" }, tilt.pretty(made.arguments))));
  }
  if (!body.length) body.push(tilt.el("p", { class: "note" }, "(empty)"));
  return body;
};

tilt.asText = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));

tilt.pretty = function (value) {
  if (typeof value !== "string") return tilt.asText(value);
  try { return JSON.stringify(JSON.parse(value), null, 2); } catch { return value; }
};

/* Six steps from certain to hardly likely; the context has none. */
tilt.LIKELY = [[0.9, "90 % and more"], [0.5, "50 to 90 %"], [0.2, "20 to 50 %"], [0.05, "5 to 20 %"], [0.01, "1 to 5 %"], [0, "under 1 %"]];

tilt.tokens = function (page, texts) {
  if (!page.ids) return tilt.el("p", { class: "note" }, "The policy gave no token ids.");
  const place = tilt.el("div", { class: "tokens", tabindex: "0", role: "region", "aria-label": "Tokens" });
  const reading = tilt.el("p", { class: "note", role: "status" }, "Point at a token, or tap it, to read it.");
  const shown = Math.min(page.ids.length, tilt.MAX_TOKENS);
  let at = 0, sampledSoFar = 0;
  for (const [count, sampled, turn] of page.spans) {
    for (let end = at + count; at < end && at < shown; at++) {
      place.append(tilt.token(page.ids[at], texts, sampled ? page.logprobs[sampledSoFar++] : undefined, turn, at));
    }
  }
  const tell = (event) => { if (event.target.dataset && event.target.dataset.words) reading.textContent = event.target.dataset.words; };
  place.addEventListener("pointerover", tell);
  place.addEventListener("click", tell);
  const notes = [];
  if (shown < page.ids.length) notes.push(`The first ${shown.toLocaleString("en-US")} of ${tilt.plural(page.ids.length, "token")}.`);
  if (!Object.keys(texts).length) notes.push("Ids stand for the tokens: the model's tokenizer was not at hand when the report was written.");
  const context = tilt.el("li", {}, tilt.el("span", { class: "token context" }, "context"), "not sampled, not trained on");
  const likely = tilt.LIKELY.map(([, words], level) => tilt.el("li", {}, tilt.el("span", { class: `token sampled p${level}` }, "token"), words));
  return tilt.el("div", {}, tilt.el("ul", { class: "legend", "aria-label": "Colours: how likely the model found what it sampled" }, context, likely),
    ...notes.map((note) => tilt.el("p", { class: "note" }, note)), place, reading);
};

tilt.token = function (id, texts, logprob, turn, at) {
  const text = texts[id] ?? `${id} `;
  const sampled = logprob !== undefined;
  const p = typeof logprob === "number" ? Math.exp(logprob) : null;
  const level = p === null ? "unknown" : `p${tilt.LIKELY.findIndex(([least]) => p >= least)}`;
  const likely = p === null ? "without log-probability" : `log-probability ${logprob.toFixed(3)}, ${(100 * p).toPrecision(3)} %`;
  const words = `token ${at + 1}: ${JSON.stringify(text)}, id ${id}` + (sampled ? `, sampled in turn ${turn + 1}, ${likely}` : ", context");
  const node = tilt.el("span", { class: sampled ? `token sampled ${level}` : "token context", "data-words": words });
  node.textContent = text.replaceAll("\r", "␍").replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
  return node;
};
