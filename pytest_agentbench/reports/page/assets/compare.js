// Two or more runs, variants or arms: intervals as a picture, and the scenarios that flipped.

/** Returns what is compared: each variant of each run, in the order of the suites in run.json, so that the arm that others are compared with comes first. */
function sides() {
  const seen = new Map();
  for (const row of page.rows) {
    const key = JSON.stringify([row.run, row.variant]);
    if (!seen.has(key)) seen.set(key, { run: row.run, variant: row.variant, place: Object.keys(page.runs[row.run].mains).indexOf(row.group), name: sideName(row) });
  }
  return [...seen.values()].sort((a, b) => a.run - b.run || a.place - b.place);
}

function sideName(row) {
  return page.runs.length > 1 ? `${page.runs[row.run].name}${row.variant === "default" ? "" : ` ${row.variant}`}` : row.variant;
}

/** Returns the results of a scenario in each compared run or variant: mean score and share of passed trials, null if it did not run. */
function sidesOf(each) {
  return page.sides.map(side => {
    const rows = each.rows.filter(row => row.run === side.run && row.variant === side.variant);
    const judged = rows.filter(row => row.passed !== null);
    return { row: rows.length ? worstOf(rows) : null, rows, ttft: mean(present(rows, "ttft")), ms: mean(present(rows, "ms")), tokens: mean(present(rows, "tokens")), score: mean(present(rows, "score")), passed: judged.length ? judged.filter(row => row.passed).length / judged.length : null };
  });
}

/** Returns whether a scenario passes in one run or variant and not in another. Without a threshold, returns whether its score differs. */
function isFlipped(each) {
  const found = sidesOf(each);
  const passed = found.map(side => side.passed).filter(share => share !== null);
  if (passed.length > 1) return Math.min(...passed) < 0.5 && Math.max(...passed) >= 0.5;
  const scores = found.map(side => side.score).filter(score => score !== null);
  return scores.length > 1 && Math.max(...scores) - Math.min(...scores) > 1e-9;
}

const MOST_FLIPS = 200;

/** Draws the section. Returns false if there is nothing to compare. */
function buildCompare() {
  const section = document.getElementById("compare");
  page.sides = sides();
  const several = page.sides.length > 1;
  if (!several && !page.compared.some(each => hasInterval(each) && !each.rule)) return false;
  section.replaceChildren(section.firstElementChild, ...[intervalPictures(), several ? flipTable() : null].filter(Boolean));
  return true;
}

/** Returns the table of flipped scenarios, the largest differences first. */
function flipTable() {
  const flipped = page.scenarios.filter(isFlipped).map(each => ({ each, found: sidesOf(each) }));
  const change = ({ found }) => { const scores = found.map(side => side.score).filter(score => score !== null); return Math.max(...scores) - Math.min(...scores); };
  flipped.sort((a, b) => change(b) - change(a));
  const cell = side => el("td", {}, side.row ? el("a", { href: `#${linkOf(side.row)}` }, `${side.passed === null ? "" : side.passed >= 0.5 ? "\u2713 " : "\u2717 "}${scored(side.score)}`) : "\u2013");
  const note = flipped.length > MOST_FLIPS ? `, of which ${MOST_FLIPS} are shown; the table above has a filter for all` : "";
  return el("div", { class: "scroll" }, el("h3", {}, `${flipped.length} scenarios flipped${note}`),
    flipped.length ? el("table", { id: "flips" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "scenario"), page.sides.map(side => el("th", { scope: "col" }, side.name)))),
      el("tbody", {}, flipped.slice(0, MOST_FLIPS).map(({ each, found }) => el("tr", {}, el("th", { scope: "row" }, each.scenario), found.map(cell))))) : null);
}

/** Returns whether a comparison has an interval. */
function hasInterval(each) {
  return each.low !== null && each.high !== null;
}

/** Draws the intervals of rules and comparisons. Differences of scores and ratios of latencies are in separate lists. */
function intervalPictures() {
  const known = page.compared.filter(each => hasInterval(each) && !each.rule);
  if (!known.length) return null;
  return el("div", { class: "intervals" }, el("h3", {}, "Intervals"),
    el("p", { class: "soft" }, "The bar is the interval, the dot is the estimate, and the dashed line marks no difference."),
    el("ul", {}, known.map(intervalItem)));
}

/** Draws the section of the gate: the interval of each rule against its threshold. Returns false if there is no rule with a value. */
function buildRules() {
  const section = document.getElementById("rules"), rules = page.compared.filter(each => each.rule);
  if (!rules.length) return false;
  section.replaceChildren(section.firstElementChild, el("div", { class: "intervals" },
    el("p", { class: "soft" }, "The bar is the interval, the dot is the estimate, and the dashed line is the threshold. A rule fails if its whole interval is in the shaded part, and passes if its whole interval is outside."),
    el("ul", {}, rules.map(intervalItem))));
  return true;
}

function intervalItem(each) {
  const ends = [each.low, each.high, each.threshold, each.estimate].filter(value => value !== null);
  // At least two hundredths of the values, so that the numbers of the axis differ.
  const room = Math.max((Math.max(...ends) - Math.min(...ends)) * 0.08, Math.max(...ends.map(Math.abs)) * 0.02) || 0.1;
  const low = Math.min(...ends) - room, high = Math.max(...ends) + room;
  const x = value => 8 + (value - low) / (high - low) * 384;
  const interval = hasInterval(each) ? `[${figure(each.low)}, ${figure(each.high)}] at ${figure(each.confidence * 100, 4)} %` : "without an interval";
  const words = `${figure(each.estimate)} ${interval}, against ${figure(each.threshold)}`;
  const [from, to] = each.least ? [low, each.threshold] : [each.threshold, high];
  const picture = draw("svg", { viewBox: "0 0 400 44", role: "img", "aria-label": `${each.title}: ${words}`, class: "interval" },
    each.rule ? draw("rect", { class: "failing", x: x(from), width: Math.max(0, x(to) - x(from)), y: 2, height: 22 }) : null,
    draw("line", { class: "threshold", x1: x(each.threshold), x2: x(each.threshold), y1: 2, y2: 24 }),
    hasInterval(each) ? draw("line", { class: "span", x1: x(each.low), x2: x(each.high), y1: 13, y2: 13 }) : null,
    draw("circle", { class: "estimate", cx: x(each.estimate), cy: 13, r: 5 }),
    ticks(low, high).map(value => [draw("line", { class: "grid", x1: x(value), x2: x(value), y1: 24, y2: 28 }), draw("text", { x: x(value), y: 40, "text-anchor": "middle" }, figure(value))]));
  const mark = { PASS: "good", FAIL: "bad", better: "good", faster: "good", worse: "bad", slower: "bad" }[each.verdict] || "";
  return el("li", {}, el("div", {}, el("b", {}, each.title), each.verdict ? el("span", { class: mark }, ` ${each.verdict}`) : null, el("br", {}), el("span", { class: "soft" }, words)), picture);
}
