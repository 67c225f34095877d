// How rollouts ended, how they were judged and why, in plain words, and a strip with a mark for each trial.

const OUTCOMES = { ok: "finished", limit: "stopped at a limit", agent_error: "the agent failed", infra_error: "the infrastructure failed", cancelled: "cancelled" };

/** Returns a label that says how rollouts ended: the worst outcome, with the number of rollouts unless all ended like this. */
function outcomeLabel(rows) {
  const worst = worstOf(rows).status, count = rows.filter(row => row.status === worst).length;
  return el("span", { class: `badge ${worst}` }, count === rows.length ? OUTCOMES[worst] : `${count} of ${rows.length}: ${OUTCOMES[worst]}`);
}

/** Returns a label that says whether rollouts reach the threshold of their suite, or nothing if no rollout of the page is judged. */
function judgementLabel(rows) {
  const judged = rows.filter(row => row.passed !== null), passed = judged.filter(row => row.passed).length;
  if (!page.judges) return null;
  if (!judged.length) return el("span", { class: "badge", title: "No threshold decides about these rollouts, or they have no score." }, "not judged");
  const [mark, words] = passed === judged.length ? ["passed", "\u2713 passed"] : passed ? ["mixed", `\u223c ${passed} of ${judged.length} passed`] : ["failed", "\u2717 failed"];
  return el("span", { class: `badge ${mark}` }, words);
}

/** Returns the worst of some rollouts: by outcome, then by judgement and score. */
function worstOf(rows) {
  const place = row => [Math.min(RANK[row.status], RANK.limit), row.passed === false ? 0 : 1, row.score === null ? -Infinity : row.falling ? -row.score : row.score, RANK[row.status]];
  return rows.reduce((worst, row) => (comparison(place(row), place(worst)) < 0 ? row : worst));
}

/** Compares two lists of numbers or texts, the first difference first. */
function comparison(a, b) {
  for (let place = 0; place < a.length; place += 1) {
    if (a[place] < b[place]) return -1;
    if (a[place] > b[place]) return 1;
  }
  return 0;
}

const LEVELS = 5; // classes q0 (worst) to q4 (best) in page.css
const MOST_TRIALS = 20; // trials in a strip

/** Returns from 0 (worst) to 1 (best) where a score is on its scale, or null without a score. An open end of a scale is the most extreme score of the page. */
function goodness(row) {
  if (row.score === null) return null;
  const { least, greatest } = row.main;
  const [low, high] = page.ranges.get(row.main.score);
  const from = least ?? low, to = greatest ?? Math.max(high, from + 1);
  const share = Math.min(1, Math.max(0, (row.score - from) / (to - from || 1)));
  return row.falling ? 1 - share : share;
}

/** Returns main score -> its lowest and highest value on the page. */
function rangesOf(rows) {
  const ranges = new Map();
  for (const row of rows) {
    if (row.score === null) continue;
    const [low, high] = ranges.get(row.main.score) || [row.score, row.score];
    ranges.set(row.main.score, [Math.min(low, row.score), Math.max(high, row.score)]);
  }
  return ranges;
}

/** Returns a mark for each trial: the better the score, the higher and greener. A cross has no score. Each mark opens its rollout. */
function strip(rows) {
  const more = rows.length - MOST_TRIALS;
  return el("span", { class: "strip" }, rows.slice(0, MOST_TRIALS).map(trialMark), more > 0 ? el("span", { class: "soft" }, ` +${more}`) : null);
}

function trialMark(row) {
  const good = goodness(row);
  const level = good === null ? "none" : `q${Math.min(LEVELS - 1, Math.floor(good * LEVELS))}`;
  const judged = row.passed === null ? "" : row.passed ? ", passed" : ", failed";
  const words = `trial ${row.trial}: ${good === null ? "no score" : scored(row.score)}${judged}, ${OUTCOMES[row.status]}`;
  return el("a", { class: `trial ${level}`, href: `#${linkOf(row)}`, tabindex: "-1", title: words, "aria-label": words }, good === null ? "\u00d7" : null);
}

/** Returns why a rollout failed: its error or limit, its first failed check, or the missing and unexpected tools. Empty if there is nothing to say. */
function whyOf(row) {
  if (row.status !== "ok" && row.reason) return [row.reason];
  const [missing, extra] = differences(row);
  const tools = (words, names) => (names.length ? [el("span", { class: "soft" }, `${words} `), names.map(name => [el("code", {}, name), " "])] : []);
  if (row.why && row.passed !== true) return [row.why, " "];
  return [...tools("not called:", missing), ...tools("not expected:", extra)];
}
