// The section on speed: distributions, quality against speed, and server metrics below the rollouts in flight.

const SPREADS = [["ttft", "Time to first token", "milliseconds"], ["itl", "Inter-token latency", "milliseconds"], ["call_output_tokens_per_s", "Output speed of a call", "tokens per second"]];

/** Draws the section. A focused point keeps the focus. */
function buildSpeed() {
  const section = document.getElementById("speed");
  const held = section.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const spreads = SPREADS.map(([name, title, unit]) => spread(name, title, unit));
  const recorded = page.runs.filter(run => run.recorded).map(run => el("p", { class: "soft" }, `The answers of ${run.name} come from a recording, so they have the speed of its playback, which is not shown.`));
  const content = [...recorded, ...spreads, qualityPicture(), ...page.runs.map(overTime)].filter(Boolean);
  section.replaceChildren(section.firstElementChild, el("div", { class: "pictures" }, content.length ? content : el("p", { class: "soft" }, "Nothing was measured.")));
  if (held) [...section.querySelectorAll("a")].find(link => link.getAttribute("href") === held)?.focus({ preventScroll: true });
}

/** Returns the name of a run's group of calls. */
function seriesName(run, group) {
  return page.runs.length > 1 ? `${run.name} ${group}` : group;
}

/** Draws the distribution of a metric: the share of values in each bin, for each group of calls. All groups have the same bins, so that they can be compared. */
function spread(name, title, unit) {
  const series = page.runs.filter(run => !run.recorded).flatMap(run => Object.entries(run.distributions).filter(([, metrics]) => (metrics[name] || []).length)
    .map(([group, metrics]) => counted(seriesName(run, group), metrics[name])));
  if (!series.length) return null;
  if (series.every(each => !each.counts.length)) return pictured(title, page.terms[name], el("p", { class: "soft" }, `All values are below 0.01 ${unit}.`));
  const left = Math.min(...series.filter(each => each.counts.length).map(each => quantile(each.counts, each.drawn, LOWEST)));
  for (const each of series) each.counts = each.counts.filter(([bin]) => bin >= Math.floor(left));
  const width = widthOf(series);
  for (const each of series) each.bins = joined(each.counts, width);
  const bins = series.flatMap(each => each.bins);
  const high = Math.max(...series.flatMap(each => each.bins.map(bin => bin[2] / each.all * 100)));
  const x = { ...around(Math.min(...bins.map(bin => bin[0])), Math.max(...bins.map(bin => bin[1]))), log: true, title: `${unit} (logarithmic)` };
  const picture = canvas({ x, y: { low: 0, high: high * 1.05, title: "% of values" }, label: `${title}, distribution` });
  series.forEach((each, place) => picture.root.append(draw("path", { class: `line ${INK[place % INK.length]}`, d: path(outline(each), picture.atX, picture.atY, true) },
    draw("title", {}, each.name))));
  const counts = series.map(each => `${each.all.toLocaleString("en")} values`);
  return pictured(series.length > 1 ? title : `${title}, ${counts[0]}`, page.terms[name], picture.root, legend(series.map((each, place) => `${each.name}, ${counts[place]}`)), leftOut(series));
}

const LOWEST = 0.01; // share of the values below the axis, so that it starts where values are

/** Returns a group of values. Those below the least bin (several events with one timestamp have gaps of 0) are counted, but not drawn. */
function counted(name, counts) {
  const sum = bins => bins.reduce((total, [, count]) => total + count, 0);
  const drawn = counts.filter(([bin]) => bin > page.runs[0].least);
  return { name, counts: drawn, all: sum(counts), drawn: sum(drawn) };
}

/** Returns a note on the share of values that are left of the axis, or nothing. */
function leftOut(series) {
  const all = series.reduce((total, each) => total + each.all, 0);
  const shown = series.reduce((total, each) => total + each.counts.reduce((sum, [, count]) => sum + count, 0), 0);
  return all === shown ? null : el("p", { class: "soft" }, `${figure((all - shown) / all * 100)} % of the values are left of this axis: zeros, and the lowest hundredth of the others.`);
}

const LEAST_SPAN = 1.5; // minimum ratio between the limits of an axis, so that its numbers differ

/** Returns the limits of an axis, moved apart if they are close. */
function around(low, high) {
  const more = Math.max(1, Math.sqrt(LEAST_SPAN / (high / low)));
  return { low: low / more, high: high * more };
}

const MOST_BINS = 120, LEAST_BINS = 8; // limits of the number of bins in a chart

/** Returns how many of the finest bins are merged, by the rule of Freedman and Diaconis: from the interquartile range and the number of values. */
function widthOf(series) {
  const known = series.filter(each => each.counts.length);
  const widths = known.map(({ counts, drawn }) => 2 * (quantile(counts, drawn, 0.75) - quantile(counts, drawn, 0.25)) / Math.cbrt(drawn));
  const ends = known.flatMap(({ counts }) => [counts[0][0], counts.at(-1)[0] + 1]);
  const range = Math.max(...ends) - Math.min(...ends);
  return Math.max(1, Math.round(Math.min(Math.max(...widths, range / MOST_BINS), range / LEAST_BINS)));
}

/** Returns a quantile as a bin number with a fraction. */
function quantile(counts, all, share) {
  let below = 0;
  for (const [bin, count] of counts) {
    if (below + count >= share * all) return bin + (share * all - below) / count;
    below += count;
  }
  return counts.at(-1)[0] + 1;
}

/** Returns the bins of the chart: lower limit, upper limit, count. */
function joined(counts, width) {
  const found = new Map();
  for (const [bin, count] of counts) found.set(Math.floor(bin / width), (found.get(Math.floor(bin / width)) || 0) + count);
  const end = number => 10 ** (number * width / page.runs[0].bins);
  return [...found].map(([number, count]) => [end(number), end(number + 1), count]);
}

/** Returns the outline of a histogram. It goes down to zero between bins with a gap. */
function outline({ bins, all }) {
  const points = [];
  let end = null;
  for (const [low, high, count] of bins) {
    if (end === null || Math.abs(end / low - 1) > 1e-9) { if (end !== null) points.push([end, 0]); points.push([low, 0]); }
    points.push([low, count / all * 100]);
    end = high;
  }
  return end === null ? [] : [...points, [end, 0]];
}

/** Draws the score of each rollout against its duration. */
function qualityPicture() {
  const rows = page.rows.filter(row => row.score !== null && row.ms !== null && !page.runs[row.run].recorded);
  if (!rows.length) return null;
  const scores = rows.map(row => row.score), times = rows.map(row => row.ms / 1000);
  const low = Math.min(0, ...scores), high = Math.max(1, ...scores);
  const picture = canvas({ x: { low: 0, high: largest(times) * 1.05, title: "seconds of the rollout" }, y: { low: low - 0.05, high: high * 1.05, title: "score" }, role: "group", label: "Quality against speed: each rollout's score and time; arrows go from point to point, by time" });
  const groups = [...new Set(rows.map(row => seriesName(page.runs[row.run], row.group)))];
  for (const row of rows) {
    const place = groups.indexOf(seriesName(page.runs[row.run], row.group));
    const point = draw("a", { href: `#${linkOf(row)}`, tabindex: "-1" }, draw("circle", { class: `point ${INK[place % INK.length]}`, cx: picture.atX(row.ms / 1000), cy: picture.atY(row.score), r: 3.5 },
      draw("title", {}, `${row.id}: ${scored(row.score)} in ${duration(row.ms)}`)));
    picture.root.append(point);
  }
  walkable([...picture.root.querySelectorAll("a")], rows.map(row => row.ms));
  return pictured("Quality against speed, a point for each rollout", null, picture.root, legend(groups));
}

/** Makes one of many links reachable with the Tab key, and the others with arrow keys, in the order of their values. */
function walkable(links, values) {
  const order = links.map((link, place) => [values[place], link]).sort((a, b) => a[0] - b[0]).map(([, link]) => link);
  let stop = order[0];
  stop.setAttribute("tabindex", "0");
  order.forEach((link, place) => {
    link.addEventListener("focus", () => { stop.setAttribute("tabindex", "-1"); stop = link; stop.setAttribute("tabindex", "0"); });
    link.addEventListener("keydown", event => {
      const next = order[place + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] || NaN)];
      if (!next) return;
      event.preventDefault();
      next.focus();
    });
  });
}

function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

/** Draws the rollouts in flight and the server metrics on the same time axis. */
function overTime(run, place) {
  const rows = page.rows.filter(row => !run.recorded && row.run === place && row.start !== null && row.end !== null);
  if (!rows.length) return null;
  const began = rows.reduce((least, row) => Math.min(least, row.start), Infinity);
  const end = largest(rows.map(row => row.end - began));
  const lines = [{ title: page.live && !page.ended ? "rollouts in flight (finished ones only)" : "rollouts in flight", unit: "", source: "", points: inFlight(rows) }, ...run.server];
  const turns = turnsOf(rows, began), names = [...new Set(turns.map(turn => turn.variant))];
  const pictures = lines.map(line => overTimeLine({ ...line, points: line.points.map(([at, value]) => [at - began, value]) }, end, turns, names));
  return el("figure", { class: "over-time" }, el("figcaption", {}, `${page.runs.length > 1 ? `${run.name}: ` : ""}Servers over time, under the rollouts in flight${names.length > 1 ? ", by the arm that was running" : ""}`), pictures, legend(names));
}

/** Returns the turns of the arms: when which one was running, each until the next one begins. A single one if rollouts of several ran at the same time. */
function turnsOf(rows, began) {
  const turns = [];
  let until = -Infinity;
  for (const row of [...rows].sort((a, b) => a.start - b.start)) {
    if (turns.at(-1)?.variant !== row.variant) {
      if (row.start < until - 0.01) return [{ variant: rows[0].variant, from: 0, to: Infinity }];
      if (turns.length) turns.at(-1).to = row.start - began;
      turns.push({ variant: row.variant, from: turns.length ? row.start - began : 0, to: Infinity });
    }
    until = Math.max(until, row.end);
  }
  return turns;
}

/** Returns the part of a line of steps in a turn. Empty if the line begins later. */
function during(points, { from, to }, end) {
  const before = points.filter(([at]) => at <= from).at(-1), inside = points.filter(([at]) => at > from && at < to);
  const part = before ? [[from, before[1]], ...inside] : inside;
  return part.length ? [...part, [Math.min(to, end), part.at(-1)[1]]] : [];
}

function overTimeLine({ title, unit, source, points }, end, turns, names) {
  const inside = points.filter(([at]) => at <= end).map(([at, value]) => [Math.max(0, at), value]);
  if (!inside.length) return null;
  const high = largest(inside.map(([, value]) => value));
  const name = [title, source && `(${source})`].filter(Boolean).join(" ");
  if (!high) return el("p", { class: "soft" }, `${name}: 0 all the time`);
  const picture = canvas({ width: 940, height: 130, x: { low: 0, high: end, title: "seconds since the first rollout began" }, y: { low: 0, high: unit === "%" ? Math.max(high, 1) : high * 1.1, title: unit || "number" }, label: `${name} over time` });
  for (const turn of turns) {
    const part = during(inside, turn, end);
    if (part.length) picture.root.append(draw("path", { class: `line ${INK[names.indexOf(turn.variant) % INK.length]}`, d: path(part, picture.atX, picture.atY, true) }, draw("title", {}, turn.variant)));
  }
  return el("div", {}, el("h3", {}, name), picture.root);
}

/** Returns the number of running rollouts after each start or end. A rollout shorter than a millisecond changes nothing. */
function inFlight(rows) {
  const changes = new Map();
  for (const [at, by] of rows.flatMap(row => [[row.start, 1], [row.end, -1]])) changes.set(at, (changes.get(at) || 0) + by);
  let count = 0;
  return [...changes].sort((a, b) => a[0] - b[0]).map(([at, by]) => [at, count += by]);
}
