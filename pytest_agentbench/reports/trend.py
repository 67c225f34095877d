"""Writes the history of suites as trend.html and trend.json. The page contains no script, loads no file, and escapes all texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

from pytest_agentbench.gate.trend import Trend
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.reports.document import plain as words
from pytest_agentbench.reports.html import text
from pytest_agentbench.reports.sections.trend import document

PAGE, DATA = "trend.html", "trend.json"

STYLE = """
:root { --ink: #1c2128; --soft: #59636e; --paper: #ffffff; --card: #f6f8fa; --edge: #d1d9e0; --line: #0969da;
  --bad: #cf222e; --good: #1a7f37;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --card: #151b23; --edge: #3d444d;
  --line: #4493f8; --bad: #f85149; --good: #3fb950; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1200px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; } h2 { font-size: 18px; margin-top: 32px; } summary { color: var(--soft); }
p, li, td, th { overflow-wrap: anywhere; } .soft { color: var(--soft); font-weight: 400; }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); }
.chart { background: var(--card); border: 1px solid var(--edge); border-radius: 6px; padding: 12px; margin: 0;
  min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif;
  fill: var(--soft); }
.grid { stroke: var(--edge); stroke-width: 1; } .begins { stroke: var(--soft); stroke-width: 1;
  stroke-dasharray: 4 3; }
.interval { stroke: var(--line); stroke-width: 3; opacity: .3; } .line { fill: none; stroke: var(--line);
  stroke-width: 1.5; }
circle { fill: var(--line); } circle.bad { fill: var(--bad); } circle.good { fill: var(--card); stroke: var(--good); stroke-width: 3; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; } th, td { text-align: left;
  padding: 4px 10px 4px 0; vertical-align: top; }
thead th { color: var(--soft); font-weight: 500; } tbody th { font-weight: 400; } tbody th, td { border-top: 1px solid var(--edge); }
tbody th.bad { color: var(--bad); font-weight: 600; } tbody th.good { color: var(--good); font-weight: 600; }
code { font: 13px ui-monospace, monospace; }
"""


def write(trend: Trend, directory: Path) -> list[Path]:
    """Writes trend.html and trend.json, and returns their paths. Raises OSError."""
    data = json.dumps(plain(trend), indent=1, ensure_ascii=False) + "\n"
    page = "\n".join(html(trend)) + "\n"
    return [write_whole(directory / name, text, errors="backslashreplace") for name, text in ((PAGE, page), (DATA, data))]


def html(trend: Trend) -> Iterator[str]:
    """Yields the lines of trend.html."""
    report = document(trend)
    title = escape(one_line(words(report.title)))
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>agentbench: {title}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{title}</h1>"
    yield from text(report, depth=2)
    yield "</body>\n</html>"
