// The table of all scenarios. Only visible rows are drawn, so that it stays fast with thousands of scenarios.

const table = { shown: [], sort: "worst", down: false, height: 48, stop: 0, filters: { text: "", status: "", tool: "", most: "", flipped: false } };

/** Functions that order the scenarios by each column. `worst` is the default. */
const ORDERS = {
  worst: each => [RANK[each.status] < 3 ? RANK[each.status] : 3, badness(each)],
  scenario: each => [each.scenario],
  status: each => [RANK[each.status]],
  score: each => [each.score ?? Infinity],
  tools: each => [-each.missing.length - each.extra.length],
  ttft: each => [each.ttft ?? Infinity],
  time: each => [each.ms ?? Infinity],
  tokens: each => [each.tokens ?? Infinity],
};

const COLUMNS = [["scenario", "scenario"], ["status", "status"], ["score", "score"], ["tools", "tools: missing, unexpected"],
  ["ttft", "first token"], ["time", "time"], ["tokens", "tokens"]];

/** Returns a number that is smaller for worse scenarios. */
function badness(each) {
  if (each.score === null) return -Infinity;
  return each.falling ? -each.score : each.score;
}

/** Creates the elements of the table, once. */
function buildTable() {
  const section = document.getElementById("scenarios");
  table.count = el("p", { class: "soft", role: "status" });
  table.sizer = el("div", { class: "sizer", role: "rowgroup" });
  table.head = el("div", { class: "row head", role: "row" }, COLUMNS.map(headCell));
  table.scroller = el("div", { class: "scroller", role: "table", "aria-label": "Scenarios", tabindex: "0" }, el("div", { role: "rowgroup", class: "top" }, table.head), table.sizer);
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

function headCell([order, title]) {
  const sorted = () => {
    table.down = table.sort === order && !table.down;
    table.sort = order;
    arrange();
  };
  return el("div", { role: "columnheader", class: `cell ${order}`, "data-order": order }, el("button", { type: "button", onclick: sorted }, title));
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
    field("status", el("select", { id: "filter-status", onchange: on("status") }, el("option", { value: "" }, "all"), statuses.map(status => el("option", { value: status }, status.replace("_", " "))))),
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

const SCORE_WIDTH = 150, SIDE_WIDTH = 50, MOST_SCORE_WIDTH = 400; // pixels: minimum width of a score's cell, width of each compared run, and maximum width

/** Sorts, filters and draws the table. A focused scenario keeps the focus; if it is filtered out, the table gets it. */
function arrange() {
  const order = ORDERS[table.sort], held = table.shown[focusedPlace()];
  const keyed = page.scenarios.filter(isWanted).map(each => [order(each), each]);
  keyed.sort(([a, x], [b, y]) => comparison(a, b) * (table.down ? -1 : 1) || comparison([x.scenario], [y.scenario]));
  table.shown = keyed.map(([, each]) => each);
  const all = page.scenarios.length;
  table.count.textContent = `${table.shown.length.toLocaleString("en")} of ${all.toLocaleString("en")} scenarios, ${table.sort === "worst" ? "worst first" : `by ${table.sort}`}`;
  for (const cell of table.head.children) {
    const sorted = cell.dataset.order === table.sort;
    cell.setAttribute("aria-sort", sorted ? (table.down ? "descending" : "ascending") : "none");
  }
  table.scroller.setAttribute("aria-rowcount", table.shown.length + 1);
  table.scroller.style.setProperty("--score", `${Math.min(Math.max(SCORE_WIDTH, page.sides.length * SIDE_WIDTH), MOST_SCORE_WIDTH)}px`);
  const place = held ? table.shown.findIndex(each => each.suite === held.suite && each.scenario === held.scenario) : -1;
  drawRows(true, place);
  if (place >= 0) focusRow(place);
  else if (held) table.scroller.focus({ preventScroll: true });
}

function comparison(a, b) {
  for (let place = 0; place < a.length; place += 1) {
    if (a[place] < b[place]) return -1;
    if (a[place] > b[place]) return 1;
  }
  return 0;
}

const MARGIN = 8; // rows drawn above and below the visible ones

/** Draws the visible rows and the focused row at their positions, in an element with the height of all rows. */
function drawRows(anew = false, focused = Number(focusedPlace() ?? -1)) {
  table.height = window.matchMedia(NARROW).matches ? 84 : 48;
  table.sizer.style.height = `${table.shown.length * table.height}px`;
  const seen = table.printing ? table.shown.length : Math.ceil(table.scroller.clientHeight / table.height);
  const above = table.printing ? 0 : Math.floor(table.scroller.scrollTop / table.height);
  const first = Math.max(0, above - MARGIN), last = Math.min(table.shown.length, above + seen + MARGIN);
  const old = new Map(anew ? [] : [...table.sizer.children].map(row => [Number(row.dataset.place), row]));
  const places = Array.from({ length: Math.max(last - first, 0) }, (_, n) => first + n);
  if (table.shown[focused] && !places.includes(focused)) places.push(focused);
  const rows = places.map(place => old.get(place) || scenarioRow(table.shown[place], place));
  const kept = new Set(rows);
  for (const row of [...table.sizer.children]) if (!kept.has(row)) row.remove();
  for (const row of rows) {
    row.style.transform = `translateY(${row.dataset.place * table.height}px)`;
    if (!row.isConnected) table.sizer.append(row);
  }
  placeStop(above);
}

/** Makes only one row reachable with the Tab key: the last focused one, or the first visible one. Arrow keys reach the others. */
function placeStop(seen) {
  const drawn = [...table.sizer.children].map(row => Number(row.dataset.place));
  const stop = drawn.includes(table.stop) ? table.stop : Math.min(seen, table.shown.length - 1);
  for (const row of table.sizer.children) linkIn(row).tabIndex = Number(row.dataset.place) === stop ? 0 : -1;
}

function linkIn(row) {
  return row.querySelector("a");
}

/** Returns the index of the focused row, or undefined. */
function focusedPlace() {
  return document.activeElement?.closest(".sizer .row")?.dataset.place;
}

/** Returns a row. Its link opens the first rollout of the scenario. */
function scenarioRow(each, place) {
  const cell = (name, ...content) => el("div", { role: "cell", class: `cell ${name}` }, ...content);
  return el("div", { class: "row", role: "row", "data-place": place, "aria-rowindex": place + 2 },
    cell("scenario", el("a", { href: `#${linkOf(each.rows[0])}`, tabindex: "-1" }, el("b", {}, each.scenario)), el("span", { class: "soft" }, each.question)),
    cell("status", el("span", { class: `badge ${each.status}` }, each.status.replace("_", " ")), each.failed ? el("span", { class: "soft" }, ` ${each.failed} error${each.failed > 1 ? "s" : ""}`) : null),
    cell("score", scoreCell(each)),
    cell("tools", toolsCell(each)),
    cell("ttft", duration(each.ttft)), cell("time", duration(each.ms)), cell("tokens", figure(each.tokens)));
}

/** Returns the mean and the number of passed trials, also for each run or variant if there are several. */
function scoreCell(each) {
  const mark = !page.decides || each.judged === 0 ? "" : each.passed === each.judged ? "good" : each.passed ? "open" : "bad";
  const word = !page.decides || each.judged === 0 ? "" : each.passed === each.judged ? "\u2713" : each.passed ? "\u223c" : "\u2717";
  const mean = el("span", { class: mark }, `${word} ${scored(each.score)}`);
  if (each.rows.length === 1) return mean;
  const arrow = " \u2192 ", sides = page.sides.length > 1 ? sidesOf(each) : [];
  const parts = sides.length ? sides.map(side => scored(side.score)).join(arrow) : `${each.passed} of ${each.judged} trials`;
  const names = sides.length ? page.sides.map(side => side.name).join(arrow) : null;
  return [mean, el("span", { class: "soft parts", title: names }, ` ${parts}`)];
}

function toolsCell(each) {
  const list = (sign, names) => names.map(name => el("code", {}, `${sign}${name}`));
  return each.missing.length || each.extra.length ? [list("\u2212", each.missing), list("+", each.extra)] : el("span", { class: "soft" }, !each.tools.size ? "\u2013" : each.labelled ? "as expected" : [...each.tools].join(" "));
}

/** Moves the focus between rows with arrow keys, also to rows that are not drawn yet. */
function tableKeys(event) {
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
