// The page of a running session: asks its server for new data and adds it. Filters, scrolling and open elements do not change.

const live = { generation: "", state: "", received: 0, rows: new Map(), first: "", wanted: "" };
const EVERY_MS = 1000, SILENT_MS = 4000;

/** Asks for news repeatedly: immediately if more is available, otherwise after a pause, which is longer if drawing takes long. */
async function watch() {
  document.getElementById("live").hidden = false;
  live.wanted = location.hash;
  for (;;) {
    let pause = EVERY_MS;
    try {
      const news = await answerOf(`news?${new URLSearchParams({ generation: live.generation, state: live.state, after: live.received })}`);
      const began = performance.now();
      if (news.state) takeNews(news);
      pause = news.more ? 0 : Math.max(EVERY_MS, 5 * (performance.now() - began));
      live.silent = false;
    } catch (error) {
      if (!live.silent) sayLive(`No news since ${new Date().toLocaleTimeString("en-GB")}: ${error.message}. Is agentbench watch still running?`, "bad");
      live.silent = true;
      live.state = "";
      pause = SILENT_MS;
    }
    await new Promise(done => setTimeout(done, pause));
  }
}

/** Returns an answer of the page's server. Throws if there is none. */
async function answerOf(place) {
  const response = await fetch(place, { cache: "no-store" });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

/** Returns the promise of a block with one rollout. */
function askedDetail(row) {
  return answerOf(`rollout?${new URLSearchParams({ number: row.number })}`);
}

/** Adds new rows and updates the state of the run. */
function takeNews(news) {
  const run = page.runs[0];
  if (news.generation !== live.generation) live.received = 0;
  Object.assign(live, { generation: news.generation, state: news.state });
  Object.assign(run, { mains: news.mains, urls: news.urls, distributions: news.distributions, server: news.server });
  page.compared = news.compared;
  page.ended = news.phase === "ended";
  for (const values of news.rows) takeRow(rowOf(run, 0, values, live.received++));
  sayPhase(news);
  takeFirst(news.first);
  summarize();
  showCompare();
  offerFilters();
  arrange();
  if (page.drawn.has("speed")) buildSpeed();
  followWanted();
}

/** Adds a row. A known row stays the same object, so that an open rollout stays open. */
function takeRow(row) {
  const key = JSON.stringify([row.suite, row.scenario, row.variant, row.trial]);
  const known = live.rows.get(key);
  if (known) Object.assign(known, row);
  else {
    live.rows.set(key, row);
    page.rows.push(row);
  }
}

/** Replaces the first screen. Its HTML comes from agentbench, with all foreign text escaped. */
function takeFirst(html) {
  if (html === live.first) return;
  live.first = html;
  document.getElementById("first").replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
}

/** Opens the rollout in the address of the page as soon as its row has arrived. */
function followWanted() {
  if (!live.wanted || location.hash !== live.wanted) return;
  if (!rowAt(live.wanted.slice(1))) return;
  live.wanted = "";
  follow();
}

function sayPhase({ phase, verdict, tone, damaged }) {
  const count = `${page.rows.length.toLocaleString("en")} rollouts finished${damaged ? `; ${damaged} lines of the journal are damaged` : ""}`;
  const said = { running: ["The run is in progress.", "open"], stopped: ["The session of the run has stopped.", "open"], ended: [`The run has ended: ${verdict}.`, tone] }[phase];
  sayLive(...said, count);
}

/** Sets the line at the top: text for screen readers, and a count that changes too often for them. */
function sayLive(words, mark, count = "") {
  const line = document.getElementById("live");
  const [said, counted] = line.children;
  line.className = mark;
  if (said.textContent !== words) said.textContent = words;
  counted.textContent = count;
}
