"""Tooltips of HTML pages: definitions of metrics, statistics and built-in scores, for the mouse, the keyboard and screen readers."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.metrics import registry
from pytest_agentbench.scorers import SCORERS

DEFINITIONS = registry.definitions()

#: Title of a statistic in a table -> its definition.
STATISTICS: Mapping[str, str] = {
    "n": "Number of values.",
    "p1": "1 % of the values are at most this.",
    "p5": "5 % of the values are at most this.",
    "p10": "10 % of the values are at most this.",
    "p50": "Median: half of the values are at most this.",
    "p90": "90 % of the values are at most this.",
    "p95": "95 % of the values are at most this.",
    "p99": "99 % of the values are at most this.",
    "median, 95 %": "95 % interval of the median.",
}
STATISTIC = re.compile(r"\b(?:p1|p5|p10|p50|p90|p95|p99)\b")
ABBREVIATION = re.compile(rf"\b(?:{'|'.join(title for title in DEFINITIONS if title.isupper())})\b")
IN_LABEL = re.compile(f"{ABBREVIATION.pattern}|{STATISTIC.pattern}")
KEYBOARD = ' tabindex="0"'  # the Tab key reaches the element; the style sheet then shows its title

#: A rule of the style sheets of pages: an abbreviation that has the focus shows its definition at the bottom of the window.
FOCUSED_TOOLTIP = """abbr[title]:focus::after, button[title]:focus-visible::before { content: attr(title); position: fixed; z-index: 10;
  left: 12px; right: 12px; bottom: 12px; padding: 8px 12px; background: var(--card); color: var(--ink); border: 1px solid var(--edge);
  border-radius: 6px; font: 14px/1.4 system-ui, sans-serif; text-align: left; white-space: normal; overflow-wrap: anywhere; }"""


def definition_of(name: str) -> str:
    """Returns the definition of a metric, a statistic or a built-in score by its title. Empty if it has none."""
    return DEFINITIONS.get(name) or STATISTICS.get(name) or _definition_of_score(name)


@functools.cache
def _definition_of_score(name: str) -> str:
    if name not in SCORERS:
        return ""
    first_line = inspect.getdoc(load_object("scorer", name, SCORERS, Path())) or ""
    text = first_line.partition("\n")[0].removeprefix("Returns ").replace("`", "")
    return text[:1].upper() + text[1:]


def with_tooltips(text: str, *, label: bool = False) -> str:
    """Escapes a text. Abbreviations, or the whole text if it is the title of a metric, have their definition as a tooltip.

    In a `label`, so have statistics and scores, and the keyboard reaches the tooltips. In sentences it does not, because the same
    abbreviations have labels, and a reader would have to pass each of them.
    """
    shown = one_line(text)
    if definition := (definition_of(shown) if label else DEFINITIONS.get(shown)):
        return _tooltip(shown, definition, label=label)
    pattern = ABBREVIATION if not label else IN_LABEL
    parts = pattern.split(shown)
    found = [*(_tooltip(each, definition_of(each), label=label) for each in pattern.findall(shown)), ""]
    return "".join(escape(part) + each for part, each in zip(parts, found, strict=True))


def _tooltip(title: str, definition: str, *, label: bool) -> str:
    return f'<abbr title="{escape(definition)}"{KEYBOARD * label}>{escape(title)}</abbr>'
