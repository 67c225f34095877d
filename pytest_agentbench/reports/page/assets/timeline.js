// The timeline of a rollout: a line for each call and tool. It can be zoomed until each token is visible.

const PARTS = { queue: "client queue", wait: "waiting for the first token", whole: "waiting for the answer", decode: "decoding", tool: "tool", program: "program", agent: "agent",
  after: "calls of a judge", verifier: "verifier" };
const AFTER = ["after", "verifier"]; // parts that run after the rollout
const ROW = 20, TOP = 6, AXIS = 34, LEFT = 30;
const WIDTH = window.matchMedia(NARROW).matches ? 360 : 620;
const APART = 2; // minimum pixels between tokens for drawing each of them

/** Returns the lines of the timeline: calls with their parts, and tools, sorted by their start. */
function spansOf(attempt) {
  const calls = attempt.calls.map((call, place) => {
    const [called, sent, first, ended] = call.at;
    const parts = sent === null ? [["queue", called, ended]]
      : first === null ? [["queue", called, sent], ["whole", sent, ended]] // It was not streamed, so no first token was seen.
      : [["queue", called, sent], ["wait", sent, first], ["decode", first, ended]];
    return { name: `call ${place + 1}${call.role ? ` of the ${call.role}` : ""}`, begin: called, parts, call, place, tokens: tokensOf(call) };
  });
  const others = attempt.spans.map(span => ({ name: span.name, begin: span.at[0], parts: [[span.kind, ...span.at]], tokens: [] }));
  return [...calls, ...others].sort((a, b) => a.begin - b.begin);
}

/** Returns the time of each output event, in milliseconds. */
function tokensOf(call) {
  if (call.at[2] === null) return [];
  let at = call.at[2];
  return [at, ...call.stamps.map(step => { at += step / 10; return at; })];
}

const FIRST = ["decode", "wait", "whole", "tool", "program", "queue"]; // Of simultaneous parts, the first one of these gets the time.

/** Returns the milliseconds of each part. Each moment of the rollout belongs to one part, and to the agent if no other part covers it. What runs after the rollout, such as the verifier and a judge's calls, is counted apart. */
function sharesOf(spans, whole) {
  const parts = spans.flatMap(span => span.parts.filter(([part]) => part !== "verifier"));
  const shares = {};
  let taken = [];
  for (const name of FIRST) {
    const before = covered(taken);
    taken = [...taken, ...parts.filter(([part]) => part === name).map(([, from, to]) => [Math.min(from, whole), Math.min(to, whole)])];
    shares[name] = covered(taken) - before;
  }
  const after = covered(parts.map(([, from, to]) => [Math.max(from, whole), Math.max(to, whole)]));
  return { ...shares, agent: Math.max(0, whole - covered(taken)), after, verifier: covered(spans.flatMap(span => span.parts).filter(([part]) => part === "verifier").map(([, from, to]) => [from, to])) };
}

/** Returns the milliseconds that are covered by any of the spans from one time to another. */
function covered(spans) {
  let end = -Infinity, sum = 0;
  for (const [from, to] of [...spans].sort((a, b) => a[0] - b[0])) {
    sum += Math.max(0, to - Math.max(end, from));
    end = Math.max(end, to);
  }
  return sum;
}

/** Returns the chart, its buttons, and a table with its numbers. `openCall` gets the place of a call that the user clicks. */
function timeline(attempt, openCall) {
  const spans = spansOf(attempt);
  const end = Math.max(1, attempt.ms ?? 0, ...spans.map(span => span.parts.at(-1)[2]));
  const whole = attempt.ms ?? end;
  const view = { from: 0, to: end };
  const holder = el("div", { class: "timeline", tabindex: "0", role: "group", "aria-label": "Timeline; plus and minus zoom, arrows move, 0 shows all" });
  const redraw = () => holder.replaceChildren(timelinePicture(spans, view, whole, end));
  const zoom = factor => { const middle = (view.from + view.to) / 2; aim(view, middle, (view.to - view.from) / 2 * factor, end); redraw(); };
  const move = share => { const half = (view.to - view.from) / 2; aim(view, (view.from + view.to) / 2 + share * 2 * half, half, end); redraw(); };
  const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(Infinity), ArrowLeft: () => move(-0.5), ArrowRight: () => move(0.5) };
  holder.addEventListener("keydown", event => {
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });
  holder.addEventListener("click", event => {
    const call = event.target.closest("[data-call]");
    if (call) openCall(Number(call.dataset.call));
  });
  holder.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.7 : 1.4);
  }, { passive: false });
  redraw();
  const button = (text, name, act) => el("button", { type: "button", "aria-label": name, title: name, onclick: act }, text);
  return el("div", {},
    el("div", { class: "buttons" }, button("+", "zoom in", () => zoom(0.5)), button("\u2212", "zoom out", () => zoom(2)),
      button("\u2190", "earlier", () => move(-0.5)), button("\u2192", "later", () => move(0.5)), button("all", "show all", () => zoom(Infinity))),
    holder, partsLegend(sharesOf(spans, whole), whole), callTable(attempt, openCall));
}

/** Centres the view at a moment, without leaving the timeline. */
function aim(view, middle, half, end) {
  const size = Math.min(Math.max(half * 2, 2), end);
  const from = Math.min(Math.max(0, middle - size / 2), end - size);
  [view.from, view.to] = [Number.isFinite(from) ? from : 0, (Number.isFinite(from) ? from : 0) + size];
}

/** Draws a view. `whole` is the duration of the attempt, `end` includes its verifier. */
function timelinePicture(spans, view, whole, end) {
  const height = TOP + Math.max(1, spans.length) * ROW + AXIS;
  const x = ms => LEFT + (ms - view.from) / (view.to - view.from || 1) * (WIDTH - LEFT - 8);
  const root = draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", class: "chart",
    "aria-label": `Timeline from ${duration(view.from)} to ${duration(view.to)} of ${duration(end)}` });
  const bottom = height - AXIS;
  root.append(bar("agent", x, 0, whole, TOP, bottom - TOP, view, `agent: ${duration(whole)} in all`));
  for (const value of ticks(view.from, view.to)) {
    root.append(draw("line", { class: "grid", x1: x(value), x2: x(value), y1: TOP, y2: bottom }));
    root.append(draw("text", { x: x(value), y: bottom + 14, "text-anchor": "middle" }, figure(value, 6)));
  }
  root.append(draw("text", { x: (LEFT + WIDTH) / 2, y: height - 4, "text-anchor": "middle" }, "milliseconds since the attempt began"));
  spans.forEach((span, place) => root.append(...spanBars(span, TOP + place * ROW, x, view)));
  return root;
}

/** Draws the bars and tokens of a span. */
function spanBars(span, y, x, view) {
  const parts = span.parts.filter(([, from, to]) => to >= view.from && from <= view.to && to > from);
  const name = span.call ? String(span.name.match(/\d+/)[0]) : "\u2692";
  const label = draw("text", { x: LEFT - 6, y: y + 14, "text-anchor": "end" }, name, draw("title", {}, span.name));
  const bars = parts.map(([part, from, to]) => bar(part, x, from, to, y + 3, ROW - 6, view, `${span.name}, ${PARTS[part]}: ${duration(to - from)}`));
  const failed = span.call?.error ? [draw("text", { class: "failed", x: Math.min(x(span.parts.at(-1)[2]) + 3, WIDTH - 16), y: y + 15 }, "\u2716", draw("title", {}, span.call.error))] : [];
  return [draw("g", { "data-call": span.place }, label, bars, tokenLines(span.tokens, y, x, view), failed)];
}

/** Draws the visible part of a rectangle. */
function bar(part, x, from, to, y, height, view, title) {
  const [left, right] = [x(Math.max(from, view.from)), x(Math.min(to, view.to))];
  return draw("rect", { class: `part ${part}`, x: left, y, width: Math.max(0.75, right - left), height }, draw("title", {}, title));
}

/** Draws a line for each visible token, if the tokens are far enough apart. */
function tokenLines(tokens, y, x, view) {
  const inside = tokens.filter(at => at >= view.from && at <= view.to);
  if (inside.length < 1 || (x(inside.at(-1)) - x(inside[0])) / inside.length < APART) return [];
  return inside.map((at, place) => draw("line", { class: "token", x1: x(at), x2: x(at), y1: y + 3, y2: y + ROW - 3 },
    draw("title", {}, `at ${duration(at)}${place ? `, ${duration(at - inside[place - 1])} after the one before` : ""}`)));
}

/** Returns the legend: colour, name and duration of each part. */
function partsLegend(shares, whole) {
  const shown = Object.entries(PARTS).filter(([part]) => shares[part] > 0);
  return el("ul", { class: "legend" }, shown.map(([part, name]) => el("li", {},
    draw("svg", { width: 14, height: 12, "aria-hidden": "true" }, draw("rect", { class: `part ${part}`, width: 14, height: 12 })),
    `${name} ${duration(shares[part])}, ${AFTER.includes(part) ? "after the rollout" : `${Math.round(shares[part] / whole * 100)} %`}`)));
}

const CALL_HEADS = ["call", "prompt tokens", "of them cached", "output tokens", "to first token", "whole call", "ended"];

/** Returns a table of the calls. The number of a call is a button that opens its request and reply. */
function callTable(attempt, openCall) {
  if (!attempt.calls.length) return el("p", { class: "soft" }, "No LLM call was made.");
  const cells = (call, place) => {
    const [, sent, first, ended] = call.at;
    const end = call.error ? `${call.error}${call.status ? ` (HTTP ${call.status})` : ""}: ${call.why}` : call.finish;
    const since = stamp => duration(stamp === null || sent === null || call.error ? null : stamp - sent);
    const name = `${place + 1}${call.role ? ` (${call.role})` : ""}`;
    return [el("button", { type: "button", title: `open call ${place + 1}`, onclick: () => openCall(place) }, name), ...call.tokens.map(value => figure(value)), since(first), since(ended), end || "\u2013"];
  };
  return el("div", { class: "scroll" }, el("table", { class: "small" },
    el("thead", {}, el("tr", {}, CALL_HEADS.map(head => el("th", { scope: "col" }, head)))),
    el("tbody", {}, attempt.calls.map((call, place) => el("tr", { class: call.error ? "bad" : null }, cells(call, place).map(cell => el("td", {}, cell)))))));
}
