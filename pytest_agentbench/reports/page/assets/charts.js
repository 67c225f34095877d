// Charts: axes with round numbers, lines and legends.

const NARROW = "(max-width: 700px)"; // the same limit as in page.css
const INK = ["series-0", "series-1", "series-2", "series-3", "series-4"]; // classes in page.css, each with a colour and a dash pattern

/** Returns two to six round numbers in a range. */
function ticks(low, high) {
  if (!(high > low)) return [low];
  const power = 10 ** Math.floor(Math.log10(high - low));
  const step = [0.1, 0.2, 0.5, 1, 2, 5].map(part => part * power).find(part => (high - low) / part <= 6);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, number) => Number(((first + number) * step).toPrecision(12)));
}

/** Returns the powers of ten in a range. If these are few, also 2 and 5 times them; if these are few as well, any round numbers. */
function logTicks(low, high) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) powers.push(10 ** power);
  const fine = powers.flatMap(power => [power, 2 * power, 5 * power]);
  const inside = list => list.filter(value => value >= low * 0.999 && value <= high * 1.001);
  return [inside(powers), inside(fine)].find(found => found.length > 3) || ticks(low, high);
}

/** Draws an empty chart with axes. `x` and `y` have low, high, title and, for a logarithmic axis, `log`. A chart that contains links has the role `group`. Returns the element, and functions from values to coordinates. */
function canvas({ width = 460, height = 200, x, y, label, role = "img" }) {
  if (window.matchMedia(NARROW).matches) [width, height] = [340, Math.max(height, 160)];
  const left = 54, right = 20, top = 10, bottom = 40;
  const scale = (axis, from, to) => {
    const bend = axis.log ? Math.log10 : value => value;
    const span = bend(axis.high) - bend(axis.low) || 1;
    return value => from + (bend(Math.max(value, axis.log ? axis.low : -Infinity)) - bend(axis.low)) / span * (to - from);
  };
  const atX = scale(x, left, width - right), atY = scale(y, height - bottom, top);
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, role, "aria-label": label, class: "chart" });
  for (const value of (y.log ? logTicks : ticks)(y.low, y.high)) {
    root.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: atY(value), y2: atY(value) }));
    root.append(draw("text", { x: left - 6, y: atY(value) + 4, "text-anchor": "end" }, figure(value)));
  }
  let last = -Infinity;
  for (const value of (x.log ? logTicks : ticks)(x.low, x.high)) {
    root.append(draw("line", { class: "grid", x1: atX(value), x2: atX(value), y1: top, y2: height - bottom }));
    if (atX(value) - last < 7 * figure(value).length) continue; // Its number would touch the one before it.
    root.append(draw("text", { x: atX(value), y: height - bottom + 15, "text-anchor": "middle" }, figure(value)));
    last = atX(value);
  }
  root.append(draw("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, x.title));
  root.append(draw("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, y.title));
  return { root, atX, atY, left, right: width - right, top, bottom: height - bottom };
}

/** Returns the path of a line through points, or of steps if each value is valid until the next one. */
function path(points, atX, atY, steps = false) {
  return points.map(([x, y], place) => {
    const [right, up] = [atX(x).toFixed(1), atY(y).toFixed(1)];
    return place === 0 ? `M${right} ${up}` : steps ? `H${right}V${up}` : `L${right} ${up}`;
  }).join("");
}

/** Returns a legend, or nothing for a single line. */
function legend(names) {
  if (names.length < 2) return null;
  return el("ul", { class: "legend" }, names.map((name, place) => el("li", {},
    draw("svg", { width: 28, height: 10, "aria-hidden": "true" }, draw("path", { d: "M0 5H28", class: `line ${INK[place % INK.length]}` })), name)));
}

/** Returns a figure with a title, and with the definition of its metric as a tooltip. */
function pictured(title, about, ...content) {
  return el("figure", {}, el("figcaption", {}, about ? el("abbr", { title: about, tabindex: "0" }, title) : title), content);
}
