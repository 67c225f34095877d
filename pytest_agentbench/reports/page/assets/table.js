// The table of all scenarios. Only visible rows are drawn, so that it stays fast with thousands of scenarios.

const table = { shown: [], sort: "worst", down: false, height: 48, stop: 0, filters: { text: "", status: "", tool: "", most: "", flipped: false } };

/** Functions that order the scenarios by each column. `worst` is the default. */
const ORDERS = {
  worst: each => [RANK[each.status] < 3 ? RANK[each.status] : 3, badness(each)],
  scenario: each => [each.scenario],
  outcome: each => [RANK[each.status], each.passed / (each.judged || 1)],
  score: each => [each.score ?? Infinity],
  why: each => [-each.missing.length - each.extra.length],
  ttft: each => [each.ttft ?? Infinity],
  time: each => [each.ms ?? Infinity],
  tokens: each => [each.tokens ?? Infinity],
};

const WIDTHS = { scenario: 230, score: 175, outcome: 220, why: 230, ttft: 80, time: 80, tokens: 70, side: 150 }; // minimum pixels; the rest is shared

/** Returns the columns: order, title, width and tooltip. Several runs, variants or arms have a column each, in place of the columns of all rollouts. */
function columns() {
  const sides = page.sides.map((side, place) => [`side-${place}`, side.name, "side", "trials, mean score; time to first token, time, output tokens"]);
  const alone = [["score", "trials, score", "score", "a mark for each trial, and the mean of the main score"]];
  const means = [["ttft", "first token", "ttft", `median of the calls; ${page.terms.ttft}`], ["time", "time", "time", "duration of the rollout, mean over trials"], ["tokens", "tokens", "tokens", "output tokens of the rollout, mean over trials"]];
  return [["scenario", "scenario", "scenario"], ...(sides.length > 1 ? sides : alone), ["outcome", "outcome, judgement", "outcome"], ["why", "why; tools", "why", "the reason of the worst rollout: error, limit, first failed check, or tools that were not called or not expected"],
    ...(sides.length > 1 ? [] : means)];
}

/** Returns the function that orders scenarios by a column. */
function orderOf(name) {
  const side = /^side-(\d+)$/.exec(name);
  return side ? each => [sidesOf(each)[Number(side[1])]?.score ?? Infinity] : ORDERS[name];
}

/** Returns a number that is smaller for worse scenarios. */
function badness(each) {
  if (each.score === null) return -Infinity;
  return each.falling ? -each.score : each.score;
}

/** Creates the elements of the table, once. */
function buildTable() {
  const section = document.getElementById("scenarios");
  table.count = el("p", { class: "soft", role: "status" });
  table.sizer = el("tbody", { class: "sizer", role: "rowgroup" });
  table.head = el("tr", { class: "row head", role: "row" });
  table.element = el("table", { class: "rows", role: "table", "aria-label": "Scenarios" }, el("thead", { role: "rowgroup", class: "top" }, table.head), table.sizer);
  table.scroller = el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Scenarios" }, table.element);
  table.scroller.addEventListener("scroll", () => drawRows(), { passive: true });
  table.scroller.addEventListener("keydown", tableKeys);
  table.sizer.addEventListener("focusin", () => { table.stop = Number(focusedPlace()); placeStop(table.stop); });
  window.addEventListener("resize", () => drawRows());
  window.addEventListener("beforeprint", () => { table.printing = true; drawRows(); });
  window.addEventListener("afterprint", () => { table.printing = false; drawRows(); });
  section.append(filterBar(), table.count, table.scroller);
  offerFilters();
  arrange();
}

/** Draws the titles of the columns, again if there are others. */
function drawHead() {
  const shown = columns(), key = JSON.stringify(shown);
  if (table.columns === key) return;
  table.columns = key;
  table.head.replaceChildren(...shown.map(headCell));
  table.element.style.setProperty("--least", `${shown.reduce((sum, [, , width]) => sum + WIDTHS[width], 0)}px`);
}

function headCell([order, title, width, about]) {
  const sorted = () => {
    table.down = table.sort === order && !table.down;
    table.sort = order;
    arrange();
  };
  const cell = el("th", { role: "columnheader", scope: "col", class: `cell ${width}`, "data-order": order }, el("button", { type: "button", title: about, onclick: sorted }, title));
  cell.style.width = `${WIDTHS[width]}px`;
  return cell;
}

/** Returns the fields of the filter. */
function filterBar() {
  const filters = table.filters;
  const field = (title, input) => el("label", {}, el("span", {}, title), input);
  const on = name => event => {
    filters[name] = event.target.type === "checkbox" ? event.target.checked : event.target.value;
    table.scroller.scrollTop = 0;
    arrange();
  };
  const statuses = ["failed", "passed", "mixed", ...Object.keys(RANK)];
  table.tools = el("select", { id: "filter-tool", onchange: on("tool") }, el("option", { value: "" }, "all"));
  table.flipped = field("flipped only", el("input", { type: "checkbox", id: "filter-flipped", onchange: on("flipped") }));
  return el("div", { class: "filters", role: "search", "aria-label": "Filter the scenarios" },
    field("text", el("input", { type: "search", id: "filter-text", oninput: on("text"), placeholder: "id, question, reason" })),
    field("outcome", el("select", { id: "filter-status", onchange: on("status") }, el("option", { value: "" }, "all"), statuses.map(status => el("option", { value: status }, OUTCOMES[status] || status)))),
    field("tool", table.tools),
    field("score at most", el("input", { type: "number", id: "filter-score", step: "0.1", oninput: on("most") })),
    table.flipped);
}

/** Updates the options of the filter from the rows. The selection does not change. */
function offerFilters() {
  const tools = [...new Set(page.scenarios.flatMap(each => [...each.tools]))].sort();
  const chosen = table.tools.value;
  table.tools.replaceChildren(table.tools.firstElementChild, ...tools.map(name => el("option", { value: name, selected: name === chosen }, name)));
  table.flipped.hidden = page.sides.length < 2;
}

/** Returns whether a scenario matches the filter. */
function isWanted(each) {
  const { text, status, tool, most, flipped } = table.filters;
  return (!text || each.text.includes(text.toLowerCase()))
    && (!status || hasStatus(each, status))
    && (!tool || each.tools.has(tool))
    && (most === "" || (each.score !== null && each.score <= Number(most)))
    && (!flipped || isFlipped(each));
}

function hasStatus(each, status) {
  if (status === "passed") return each.judged > 0 && each.passed === each.judged;
  if (status === "failed") return each.passed < each.judged;
  if (status === "mixed") return each.passed > 0 && each.passed < each.judged;
  return each.rows.some(row => row.status === status);
}

/** Sorts, filters and draws the table. A focused scenario keeps the focus; if it is filtered out, the table gets it. */
function arrange() {
  drawHead();
  const order = orderOf(table.sort) || ORDERS.worst, held = table.shown[focusedPlace()];
  const keyed = page.scenarios.filter(isWanted).map(each => [order(each), each]);
  keyed.sort(([a, x], [b, y]) => comparison(a, b) * (table.down ? -1 : 1) || comparison([x.scenario], [y.scenario]));
  table.shown = keyed.map(([, each]) => each);
  const all = page.scenarios.length;
  table.count.textContent = `${table.shown.length.toLocaleString("en")} of ${all.toLocaleString("en")} scenarios, ${table.sort === "worst" ? "worst first" : `by ${table.sort}`}`;
  for (const cell of table.head.children) {
    const sorted = cell.dataset.order === table.sort;
    cell.setAttribute("aria-sort", sorted ? (table.down ? "descending" : "ascending") : "none");
  }
  table.element.setAttribute("aria-rowcount", table.shown.length + 1);
  const place = held ? table.shown.findIndex(each => each.suite === held.suite && each.scenario === held.scenario) : -1;
  drawRows(true, place);
  if (place >= 0) focusRow(place);
  else if (held) table.scroller.focus({ preventScroll: true });
}

const MARGIN = 8; // rows drawn above and below the visible ones
const HIGHEST = 720; // pixels: the greatest height of the table, as in page.css. It is as high as its rows, so it is low before they are drawn.

/** Returns the height of a row in pixels, which page.css also has. On a narrow screen, two sides are in a line. */
function rowHeight() {
  const lines = Math.ceil(page.sides.length / 2);
  table.element.style.setProperty("--lines", lines);
  return window.matchMedia(NARROW).matches ? 92 + 22 * Math.max(1, lines) : 48;
}

/** Draws the visible rows and the focused row, with empty rows of the right height in place of those that are not drawn. */
function drawRows(anew = false, focused = Number(focusedPlace() ?? -1)) {
  table.height = rowHeight();
  const room = Math.max(table.scroller.clientHeight, Math.min(window.innerHeight, HIGHEST));
  const seen = table.printing ? table.shown.length : Math.ceil(room / table.height);
  const above = table.printing ? 0 : Math.floor(table.scroller.scrollTop / table.height);
  const first = Math.max(0, Math.min(above, table.shown.length - seen) - MARGIN), last = Math.min(table.shown.length, above + seen + MARGIN);
  const old = new Map(anew ? [] : drawnRows().map(row => [Number(row.dataset.place), row]));
  const places = Array.from({ length: Math.max(last - first, 0) }, (_, n) => first + n);
  if (table.shown[focused] && !places.includes(focused)) places.push(focused);
  places.sort((a, b) => a - b);
  const kept = places.map(place => old.get(place) || scenarioRow(table.shown[place], place));
  for (const row of [...table.sizer.children]) if (!kept.includes(row)) row.remove();
  let next = 0, before = null;
  kept.forEach((row, number) => {
    if (places[number] > next) before = insertAfter(before, gap(places[number] - next));
    before = insertAfter(before, row);
    next = places[number] + 1;
  });
  if (table.shown.length > next) insertAfter(before, gap(table.shown.length - next));
  placeStop(above);
}

/** Puts a row into the table, without moving one that is at its place already, because that would take its focus. */
function insertAfter(before, row) {
  const place = before ? before.nextSibling : table.sizer.firstChild;
  if (place !== row) table.sizer.insertBefore(row, place);
  return row;
}

/** Returns an empty row in place of some rows. */
function gap(rows) {
  const cell = el("td", { role: "presentation" });
  cell.style.height = `${rows * table.height}px`;
  return el("tr", { class: "gap", role: "presentation", "aria-hidden": "true" }, cell);
}

function drawnRows() {
  return [...table.sizer.querySelectorAll(".row")];
}

/** Makes only one row reachable with the Tab key: the last focused one, or the first visible one. Arrow keys reach the others. */
function placeStop(seen) {
  const drawn = drawnRows().map(row => Number(row.dataset.place));
  const stop = drawn.includes(table.stop) ? table.stop : Math.min(seen, table.shown.length - 1);
  for (const row of drawnRows()) linkIn(row).tabIndex = Number(row.dataset.place) === stop ? 0 : -1;
}

function linkIn(row) {
  return row.querySelector("a");
}

/** Returns the index of the focused row, or undefined. */
function focusedPlace() {
  return document.activeElement?.closest(".sizer .row")?.dataset.place;
}

/** Returns a row. Its link opens the worst rollout of the scenario. */
function scenarioRow(each, place) {
  const cell = (name, ...content) => el("td", { role: "cell", class: `cell ${name}` }, ...content);
  const sides = page.sides.length > 1 ? sidesOf(each).map(sideCell) : [cell("score", el("div", { class: "trials" }, strip(each.rows), el("b", {}, scored(each.score))))];
  const means = page.sides.length > 1 ? [] : [cell("ttft", duration(each.ttft)), cell("time", duration(each.ms)), cell("tokens", figure(each.tokens))];
  return el("tr", { class: "row", role: "row", "data-place": place, "aria-rowindex": place + 2 },
    el("th", { role: "rowheader", scope: "row", class: "cell scenario" }, el("a", { href: `#${linkOf(each.worst)}`, tabindex: "-1" }, el("b", {}, each.scenario)), el("span", { class: "soft" }, each.question)),
    sides,
    cell("outcome", outcomeLabel(each.rows), " ", judgementLabel(each.rows)),
    cell("why", el("div", {}, whyCell(each))), means);
}

/** Returns the cell of a run, variant or arm: its trials, score, latency, time and tokens. */
function sideCell(side, place) {
  const facts = side.rows.length ? [duration(side.ttft), duration(side.ms), figure(side.tokens)].join(" / ") : "did not run";
  return el("td", { role: "cell", class: "cell side", "data-name": page.sides[place].name },
    el("div", { class: "trials" }, strip(side.rows), el("b", {}, scored(side.score))), el("span", { class: "soft" }, facts));
}

/** Returns why the worst rollout failed, with its name if there are others, and how many calls failed. */
function whyCell(each) {
  const why = whyOf(each.worst), failed = each.failed ? el("span", { class: "soft" }, ` ${each.failed} error${each.failed > 1 ? "s" : ""}`) : null;
  if (!why.length) return [el("span", { class: "soft" }, !each.tools.size ? "\u2013" : each.labelled ? "tools as expected" : [...each.tools].join(" ")), failed];
  return [each.rows.length > 1 ? el("span", { class: "soft" }, `${shortName(each.worst, each.rows)}: `) : null, why, failed];
}

/** Returns the side and the trial of a rollout, each if there are several. */
function shortName(row, rows) {
  const several = rows.some(other => other !== row && other.run === row.run && other.variant === row.variant);
  return [page.sides.length > 1 ? sideName(row) : "", several ? `trial ${row.trial}` : ""].filter(Boolean).join(", ");
}

/** Moves the focus between rows with the vertical arrow keys, also to rows that are not drawn yet, and between the links of a row with the others. */
function tableKeys(event) {
  if (["ArrowLeft", "ArrowRight"].includes(event.key) && event.target.closest(".sizer .row")) {
    const links = [...event.target.closest(".row").querySelectorAll("a")];
    links[links.indexOf(event.target) + (event.key === "ArrowRight" ? 1 : -1)]?.focus({ preventScroll: true });
    event.preventDefault();
    return;
  }
  const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
  if (!step || event.target.closest("button")) return;
  event.preventDefault();
  const now = focusedPlace();
  const place = Math.min(Math.max(now === undefined ? 0 : Number(now) + step, 0), table.shown.length - 1);
  reveal(place);
  focusRow(place);
}

/** Focuses the link of a row if the row is drawn. */
function focusRow(place) {
  const row = table.sizer.querySelector(`[data-place="${place}"]`);
  if (row) linkIn(row).focus({ preventScroll: true });
}

/** Scrolls until a row is visible. */
function reveal(place) {
  const top = place * table.height, room = table.scroller.clientHeight - table.head.offsetHeight;
  const from = table.scroller.scrollTop;
  if (top < from) table.scroller.scrollTop = top;
  else if (top + table.height > from + room) table.scroller.scrollTop = top + table.height - room;
  drawRows();
}
