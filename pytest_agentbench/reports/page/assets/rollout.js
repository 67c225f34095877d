// A dialog with one rollout, its transcript beside its timeline, or with two rollouts side by side.

const dialog = document.getElementById("rollout");
const open = { row: null, beside: null };

/** Shows a rollout, beside the same rollout of another run if there is one. */
function showRollout(row, beside) {
  open.row = row;
  open.beside = beside === undefined ? otherRun(row) : beside;
  renderRollout();
  if (!dialog.open) dialog.showModal();
}

/** Returns the same rollout of another run. */
function otherRun(row) {
  return page.rows.find(other => other.run !== row.run && other.id === row.id && other.suite === row.suite) || null;
}

/** Draws the open rollout. If another one was opened in the meantime, this call draws nothing. */
async function renderRollout() {
  const { row, beside } = open;
  const rows = [row, ...(beside ? [beside] : [])];
  dialog.replaceChildren(heading(row), el("p", { class: "soft" }, "Unpacking\u2026"));
  try {
    const details = await Promise.all(rows.map(detailOf));
    if (open.row !== row || open.beside !== beside) return;
    const panes = rows.map((each, place) => pane(each, details[place], rows.length > 1));
    dialog.replaceChildren(heading(row), el("div", { class: rows.length > 1 ? "panes two" : "panes" }, panes));
    dialog.scrollTop = 0;
    dialog.querySelector("h2").focus();
  } catch (error) {
    dialog.replaceChildren(heading(row), el("p", { class: "bad" }, `This rollout cannot be shown: ${error.message}`));
  }
}

/** Returns the heading: name, buttons for the neighbours, and a choice of the rollout beside it. */
function heading(row) {
  const step = (name, text, by) => el("button", { type: "button", "aria-label": name, title: `${name} (${by < 0 ? "k" : "j"})`, onclick: () => walk(by) }, text);
  return el("div", { class: "heading" },
    el("h2", { tabindex: "-1" }, row.id, el("span", { class: "soft" }, ` ${row.suite}`)),
    el("div", { class: "buttons" }, besideChoice(row), step("previous scenario", "\u2191", -1), step("next scenario", "\u2193", 1),
      el("button", { type: "button", "aria-label": "close", title: "close (Escape)", onclick: () => dialog.close() }, "\u2715")));
}

/** Returns run, variant and trial of a rollout. */
function besideName(row, other) {
  const run = page.runs.length > 1 ? `${page.runs[other.run].name}, ` : "";
  return `${run}${other.variant}, trial ${other.trial}`;
}

/** Returns a choice of the scenario's other rollouts, or nothing if there are none. */
function besideChoice(row) {
  const others = page.scenarios.find(each => each.rows.includes(row)).rows.filter(other => other !== row);
  if (!others.length) return null;
  const choice = el("select", { "aria-label": "beside it", onchange: () => showRollout(row, others[choice.value] || null) },
    el("option", { value: "" }, "compare with: none"),
    others.map((other, place) => el("option", { value: place, selected: other === open.beside }, `compare with: ${besideName(row, other)}`)));
  return choice;
}

/** Opens the previous or next rollout in the order of the table. */
function walk(by) {
  const order = table.shown.map(each => each.worst);
  const place = table.shown.findIndex(each => each.rows.includes(open.row));
  const next = order[Math.min(Math.max(place + by, 0), order.length - 1)];
  if (next) location.hash = linkOf(next);
}

/** Returns all details of a rollout. */
function pane(row, detail, narrow) {
  const title = narrow ? el("h3", {}, besideName(row, row)) : null;
  const article = el("article", { class: narrow ? "pane" : "pane wide", "aria-label": `${row.id} ${besideName(row, row)}` });
  if (!detail) return furnish(article, {}, [el("div", { class: "when" }, title, rowFacts(row)), el("div", { class: "said" }, elsewhere(row))]);
  const facts = [statusLine(row, detail), attemptList(detail, key => openCall(article, key)), scoreList(detail), toolLists(detail), extras(detail)];
  return furnish(article, {}, [el("div", { class: "when" }, title, facts), el("div", { class: "said" }, conversation(row, detail))]);
}

/** Returns what the table knows about a rollout that the page does not contain. */
function rowFacts(row) {
  const scores = Object.entries(row.scores).map(([name, value]) => el("li", {}, el("b", {}, `${name} ${figure(value)}`)));
  const names = list => el("p", {}, list.length ? list.map(name => [el("code", {}, name), " "]) : el("span", { class: "soft" }, "None."));
  return [statusLine(row, row), el("h3", {}, "Scores"), scores.length ? el("ul", {}, scores) : el("p", { class: "soft" }, "None."),
    row.expected ? [el("h3", {}, "Expected tools"), names(row.expected)] : null, el("h3", {}, "Called tools"), names(row.actual)];
}

/** Says how to see a rollout that the page does not contain. */
function elsewhere(row) {
  const run = page.runs[row.run].name;
  return [row.question ? [el("h3", {}, "Question"), long(row.question)] : null,
    el("p", {}, "The page does not contain the conversation and the timeline of this rollout, because it would be too large. This command prints them:"),
    copyable(`agentbench show ${quoted(run)} ${quoted(decodeURIComponent(linkOf(row)))}`),
    el("p", {}, "This command serves a page that shows them:"), copyable(`agentbench watch ${quoted(run)}`)];
}

function statusLine(row, detail) {
  return el("p", {}, outcomeLabel([row]), " ", judgementLabel([row]), ` ${duration(row.ms)}`,
    row.attempts > 1 ? `, ${row.attempts} attempts` : "", detail.reason ? el("span", { class: "bad" }, ` ${detail.reason}`) : null);
}

/** Returns the scores with their parts and explanations, the reasons of missing ones, and the output of a verifier. */
function scoreList(detail) {
  const scores = Object.entries(detail.scores).map(([name, score]) => el("li", {}, el("b", {}, `${name} ${figure(score.value)}`),
    score.explanation ? ` ${score.explanation}` : "", partsOf(score)));
  const missing = Object.entries(detail.score_errors).map(([name, why]) => el("li", { class: "bad" }, `${name} is missing: ${why}`));
  return el("section", {}, el("h3", {}, "Scores"), scores.length + missing.length ? el("ul", {}, scores, missing) : el("p", { class: "soft" }, "None."),
    detail.verification ? verified(detail.verification, "reward" in detail.scores) : null);
}

/** Returns the output of a verifier, with its reward unless a score contains it. */
function verified(verification, scored) {
  const why = verification.first_failure ? `, the first check that failed: ${verification.first_failure}` : "";
  return el("details", {}, el("summary", {}, "The verifier's output", scored ? null : ` (reward ${figure(verification.reward)}${why})`), long(verification.output));
}

function partsOf(score) {
  const parts = Object.entries(score.parts || {});
  return parts.length ? el("span", { class: "soft" }, ` (${parts.map(([name, value]) => `${name} ${figure(value)}`).join(", ")})`) : null;
}

/** Compares expected with called tools. Without labels, returns only the called ones. */
function toolLists(detail) {
  const labelled = detail.expected !== null, labels = detail.expected ?? [];
  const left = detail.tools.map(call => call.name);
  const expected = labels.map(label => {
    const place = left.indexOf(label.tool);
    if (place >= 0) left.splice(place, 1);
    return toolItem(place >= 0, place >= 0 ? "called" : "not called", label.tool, label.parameters ?? label.accepts, label.goal);
  });
  const names = new Set(labels.map(label => label.tool));
  const actual = detail.tools.map(call => toolItem(call.problem ? false : labelled ? names.has(call.name) : null,
    [labelled && (names.has(call.name) ? "expected" : "not expected"), call.problem && call.problem.replace("_", " ")].filter(Boolean).join(", "),
    call.name, call.raw ?? call.arguments, call.detail));
  const list = (title, items) => el("div", {}, el("h3", {}, title), items.length ? el("ul", { class: "tools" }, items) : el("p", { class: "soft" }, "None."));
  return el("section", { class: "pair" }, labelled ? list("Expected tools", expected) : null, list("Called tools", actual));
}

function toolItem(good, word, name, parameters, about) {
  return el("li", {}, good === null ? null : el("span", { class: good ? "good" : "bad" }, good ? "\u2713 " : "\u2717 "), el("code", {}, name), el("span", { class: "soft" }, ` ${word}`),
    parameters && Object.keys(parameters).length ? long(json(parameters)) : null, about ? el("div", { class: "soft" }, long(about, "span")) : null);
}

/** Returns a timeline for each attempt, the last one first. A click on a call passes the key of its exchange to `openCall`. */
function attemptList(detail, openCall) {
  return [...detail.attempts].reverse().map((attempt, place) => el("section", {},
    el("h3", {}, detail.attempts.length > 1 ? `Timeline of attempt ${attempt.attempt}` : "Timeline"),
    place ? el("p", { class: "soft" }, `${attempt.status}: ${attempt.reason}`) : null, timeline(attempt, place => openCall(exchangeKey(attempt, place)))));
}

/** Returns drafts, settings and log, all folded. */
function extras(detail) {
  const fold = (title, content) => el("details", {}, el("summary", {}, title), content);
  return [
    ...detail.drafts.map(draft => fold(`Draft ${draft.number}: ${draft.status}${draft.chosen ? ", chosen" : ""}`,
      [long(draft.answer || draft.reason), draft.verdict ? long(json(draft.verdict)) : null])),
    Object.keys(detail.settings || {}).length ? fold("The agent's settings", long(json(detail.settings))) : null,
    detail.log ? fold("Output of the agent", long(detail.log)) : null,
  ];
}
