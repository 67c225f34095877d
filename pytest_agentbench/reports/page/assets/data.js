// The data of the page: the rows of all runs, the scenarios made from them, and whole rollouts, which are decompressed when the user opens one.

const page = { runs: [], rows: [], scenarios: [], compared: [], sides: [], suitesOf: new Map(), drawn: new Set() };
const blocks = new Map(); // "run-block" -> promise of the block

/** Reads the index from the page. */
function takeIndex(index) {
  page.live = index.live;
  page.terms = index.terms;
  page.compared = index.compared;
  page.runs = index.runs;
  page.rows = index.runs.flatMap((run, place) => run.rows.map((values, number) => rowOf(run, place, values, number)));
  summarize();
}

/** Computes everything that depends on all rows. */
function summarize() {
  page.scenarios = scenariosOf(page.rows);
  page.suitesOf = new Map(page.rows.map(row => [row.id, new Set()]));
  for (const row of page.rows) page.suitesOf.get(row.id).add(row.suite);
  page.ranges = rangesOf(page.rows);
  page.judges = page.rows.some(row => row.passed !== null);
}

/** Returns a row of a run as an object. */
function rowOf(run, place, values, number) {
  const row = { run: place, number };
  run.fields.forEach((name, column) => { row[name] = values[column]; });
  row.group = row.variant === "default" ? row.suite : `${row.suite}-${row.variant}`;
  const main = run.mains[row.group];
  row.score = main && Object.hasOwn(row.scores, main.score) ? row.scores[main.score] : null;
  if (run.recorded) row.ttft = null; // The speed of a playback is not a measurement.
  row.main = main || { score: "", least: null, greatest: null };
  row.falling = Boolean(main && main.falling);
  row.ms = row.start === null || row.end === null || run.recorded ? null : (row.end - row.start) * 1000;
  return row;
}

const RANK = { agent_error: 0, infra_error: 1, cancelled: 2, limit: 3, ok: 4 };

/** Groups the rollouts of all trials, variants and runs by scenario. */
function scenariosOf(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.suite, row.scenario]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups.values()].map(summary);
}

/** Returns a line of the table: the summary of a scenario's rollouts. */
function summary(rows) {
  rows.sort((a, b) => a.run - b.run || a.variant.localeCompare(b.variant) || a.trial - b.trial);
  const worst = worstOf(rows);
  const scores = rows.map(row => row.score).filter(score => score !== null);
  const [missing, extra] = differences(worst);
  const text = [rows[0].suite, ...rows.flatMap(row => [row.id, row.question, row.reason, row.why])].join("\n").toLowerCase();
  return {
    rows, worst, suite: rows[0].suite, scenario: rows[0].scenario, question: rows[0].question, status: worst.status,
    score: mean(scores), falling: rows[0].falling, passed: rows.filter(row => row.passed).length,
    judged: rows.filter(row => row.passed !== null).length, missing, extra,
    labelled: rows[0].expected !== null, tools: new Set(rows.flatMap(row => [...(row.expected ?? []), ...row.actual])), text,
    ttft: mean(present(rows, "ttft")), ms: mean(present(rows, "ms")), tokens: mean(present(rows, "tokens")),
    failed: rows.reduce((sum, row) => sum + row.failed + (row.attempts - 1), 0),
  };
}

function present(rows, name) {
  return rows.map(row => row[name]).filter(value => value !== null);
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

/** Returns the missing and unexpected tools, one entry for each time. Empty if the scenario has no expected tools. */
function differences(row) {
  if (row.expected === null) return [[], []];
  const extra = [...row.actual];
  const missing = row.expected.filter(name => {
    const place = extra.indexOf(name);
    if (place >= 0) extra.splice(place, 1);
    return place < 0;
  });
  return [missing, extra.filter(name => !row.expected.includes(name))];
}

/** Returns the promise of a whole rollout, or of null if the page does not contain it. */
async function detailOf(row) {
  if (page.live) {
    const { rollouts: [rollout], values } = await askedDetail(row);
    return { ...rollout, value: number => values[number] };
  }
  const run = page.runs[row.run], place = placesOf(run).get(row.number);
  if (!place) return null;
  const rollout = (await blockOf(row.run, place[0])).rollouts[place[1]];
  await Promise.all(rollout.needs.map(number => blockOf(row.run, number)));
  return { ...rollout, value: number => run.values[number] };
}

/** Returns row number -> [block, place in it] for the rollouts that the page contains. */
function placesOf(run) {
  run.places ??= new Map(run.contents.flatMap((rows, block) => rows.map((row, place) => [row, [block, place]])));
  return run.places;
}

/** Returns the promise of a block. Its values are then in the list of the run. */
function blockOf(run, number) {
  const key = `${run}-${number}`;
  if (!blocks.has(key)) blocks.set(key, unpack(key).then(block => {
    const { starts, values = [] } = page.runs[run];
    block.values.forEach((value, place) => { values[starts[number] + place] = value; });
    page.runs[run].values = values;
    return block;
  }));
  return blocks.get(key);
}

/** Decompresses a block: base64, gzip, JSON. */
async function unpack(key) {
  const text = document.getElementById(`block-${key}`).textContent;
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Says which rollouts the page contains whole, or returns null if it has all of them. */
function containedNote() {
  const whole = page.live ? page.rows.length : page.runs.reduce((sum, run) => sum + placesOf(run).size, 0);
  if (whole === page.rows.length) return null;
  const commands = [el("code", {}, "agentbench show RUN ID"), " prints any other one, and ", el("code", {}, "agentbench watch RUN"), " serves a page that shows all."];
  return el("p", { class: "soft", id: "contained" }, `The page contains the conversations and timelines of ${whole.toLocaleString("en")} of ${page.rows.length.toLocaleString("en")} rollouts: `,
    "the failed and the worst ones, then the first trial of each scenario, then others. ", commands);
}

const SECTIONS = ["top", "first", "live", "rules", "scenarios", "speed", "compare", "rollout", "index", "contained"];

/** Returns the part of the address after # for a rollout: its id, with the suite before it if the id is ambiguous. */
function linkOf(row) {
  const shared = SECTIONS.includes(row.id) || page.suitesOf.get(row.id).size > 1;
  return encodeURIComponent(shared ? `${row.suite}/${row.id}` : row.id);
}

/** Returns the rollout that a link names: an id, a suite and an id, or a scenario. Undefined for any other text. */
function rowAt(link) {
  let name = link;
  try { name = decodeURIComponent(link); } catch { /* a % that means itself */ }
  if (SECTIONS.includes(name)) return undefined;
  return page.rows.find(row => row.id === name) || page.rows.find(row => `${row.suite}/${row.id}` === name)
    || page.rows.find(row => row.scenario === name);
}
