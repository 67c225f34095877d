// A run that goes on: asks whoever serves the page for what is new, and adds it; filters, scrolling and what is open stay as they are.

const live = { generation: "", state: "", received: 0, rows: new Map(), first: "", wanted: "" };
const EVERY_MS = 1000, SILENT_MS = 4000;

/** Asks again and again: at once where more is there, else after a while, and later where drawing takes long. */
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

/** An answer of whoever serves the page; throws where there is none. */
async function answerOf(place) {
  const response = await fetch(place, { cache: "no-store" });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

/** All of a rollout. */
function askedDetail(row) {
  return answerOf(`rollout?${new URLSearchParams({ number: row.number })}`);
}

/** Takes rows and what is known of the run. */
function takeNews(news) {
  const run = page.runs[0];
  if (news.generation !== live.generation) live.received = 0;
  Object.assign(live, { generation: news.generation, state: news.state });
  Object.assign(run, { mains: news.mains, distributions: news.distributions, server: news.server });
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

/** A row that is known already stays the same object, so that what is open stays open. */
function takeRow(row) {
  const key = JSON.stringify([row.suite, row.scenario, row.variant, row.trial]);
  const known = live.rows.get(key);
  if (known) Object.assign(known, row);
  else {
    live.rows.set(key, row);
    page.rows.push(row);
  }
}

/** The first screen, as the file has it: HTML of the program's own, with every word of others escaped. */
function takeFirst(html) {
  if (html === live.first) return;
  live.first = html;
  document.getElementById("first").replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
}

/** Opens what the address named when the page was opened, as soon as it is there. */
function followWanted() {
  if (!live.wanted || location.hash !== live.wanted) return;
  if (!rowAt(live.wanted.slice(1))) return;
  live.wanted = "";
  follow();
}

function sayPhase({ phase, verdict, tone, damaged }) {
  const count = `${page.rows.length.toLocaleString("en")} rollouts have ended${damaged ? `; ${damaged} lines of the journal are damaged` : ""}`;
  const said = { running: ["The run goes on.", "open"], stopped: ["The run's session has stopped.", "open"], ended: [`The run has ended: ${verdict}.`, tone] }[phase];
  sayLive(...said, count);
}

/** The line at the top: what a screen reader says, and what changes too often for that. */
function sayLive(words, mark, count = "") {
  const line = document.getElementById("live");
  const [said, counted] = line.children;
  line.className = mark;
  if (said.textContent !== words) said.textContent = words;
  counted.textContent = count;
}
