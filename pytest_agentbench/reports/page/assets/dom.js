"use strict";
// Creates elements and shows foreign texts. No function takes HTML: texts of models and tools become text nodes only.

const SVG = "http://www.w3.org/2000/svg";
// Control characters, characters that change the text direction, and lone surrogates. They are shown as escapes, as on the terminal.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;

/** Returns a text with its hidden characters escaped. */
function visible(text) {
  return String(text).replace(HIDDEN, letter => {
    const code = letter.codePointAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Sets attributes and children of an element. An `on...` attribute is a listener; a child that is not a node becomes text. */
function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

/** Creates an HTML element. */
function el(tag, attributes, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
function draw(tag, attributes, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

const NOISE = 1e-9; // A smaller number is an error of rounding.

/** Formats a number: three significant digits, whole numbers from 100 on, thousands separators, never an exponent; a dash for null. */
function figure(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  if (Math.abs(value) < NOISE) return "0";
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(decimals, 20) });
}

/** Formats a score like the reports: with three decimal places. */
function scored(value) {
  return value === null || value === undefined ? "\u2013" : value.toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 }).replace(/^-(0\.000)$/, "$1");
}

/** Formats a duration with its unit. */
function duration(ms) {
  if (ms === null || ms === undefined) return "\u2013";
  return Math.abs(ms) >= 1000 ? `${figure(ms / 1000)} s` : `${figure(ms)} ms`;
}

const LONG = 4000; // characters of a long text that are shown at first

/** Shows a text of any length. A long one has a button that shows the rest. */
function long(text, tag = "pre") {
  const whole = String(text);
  const shown = el(tag, { class: "text", dir: "auto" }, whole.slice(0, LONG));
  if (whole.length <= LONG) return shown;
  const more = el("button", { type: "button", class: "more" }, `show all ${whole.length.toLocaleString("en")} characters`);
  more.addEventListener("click", () => {
    shown.textContent = visible(whole);
    more.remove();
  });
  return el("div", {}, shown, more);
}

/** Formats any JSON value as text. */
function json(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}
