"""Writes the history of suites as trend.html and trend.json. The page contains no script, loads no file, and escapes all texts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from pytest_agentbench.gate.trend import Trend
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.reports.comparison_phrases import commit_of
from pytest_agentbench.reports.document import plain as words
from pytest_agentbench.reports.html import text
from pytest_agentbench.reports.sections.trend import document
from pytest_agentbench.reports.tooltips import FOCUSED_TOOLTIP

PAGE, DATA = "trend.html", "trend.json"
RUN_PAGE = "report.html"  # page of a run in its directory

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
summary h2, summary h3 { display: inline; } abbr[title] { text-decoration: underline dotted; cursor: help; }
a { color: var(--line); } :focus-visible { outline: 2px solid var(--line); outline-offset: 2px; }
svg a:focus-visible circle { stroke: var(--ink); stroke-width: 3; }
@media print { .chart, tr { break-inside: avoid; } details:not([open]) { display: none; } }
circle { fill: var(--line); } circle.bad { fill: var(--bad); } circle.good { fill: var(--card); stroke: var(--good); stroke-width: 3; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; } th, td { text-align: left;
  padding: 4px 10px 4px 0; vertical-align: top; }
thead th { color: var(--soft); font-weight: 500; } tbody th { font-weight: 400; } tbody th, td { border-top: 1px solid var(--edge); }
tbody th.bad { color: var(--bad); font-weight: 600; } tbody th.good { color: var(--good); font-weight: 600; }
code { font: 13px ui-monospace, monospace; }
"""


def write(trend: Trend, directory: Path, runs: Path | None = None, repository: str = "") -> list[Path]:
    """Writes trend.html and trend.json, and returns their paths. Raises OSError.

    Args:
        trend: The history.
        directory: Where to write it.
        runs: The directory of the runs, whose pages are linked. None for no such links.
        repository: The address of the repository on the web, whose commits are linked. Empty for no such links.
    """
    data = json.dumps(plain(trend), indent=1, ensure_ascii=False) + "\n"
    links = {**(links_to_runs(trend, runs, directory) if runs else {}), **links_to_commits(trend, repository)}
    page = "\n".join(html(trend, links)) + "\n"
    return [write_whole(directory / name, text, errors="backslashreplace") for name, text in ((PAGE, page), (DATA, data))]


def links_to_runs(trend: Trend, runs: Path, directory: Path) -> dict[str, str]:
    """Returns run -> address of its page, relative to `directory`. Baselines, and runs without a page, have none."""
    pages = {each.run: runs / each.source / RUN_PAGE for each in trend.runs}
    return {run: quote(Path(os.path.relpath(page, directory)).as_posix()) for run, page in pages.items() if page.is_file()}


def links_to_commits(trend: Trend, repository: str) -> dict[str, str]:
    """Returns the short form of a commit -> its address in a repository on the web."""
    commits = {each.commit for each in trend.runs if each.commit} if repository else set()
    return {commit_of(commit): f"{repository}/commit/{quote(commit)}" for commit in commits}


def web_address(remote: str) -> str:
    """Returns the web address of a git remote on a server: `https://host/owner/name`. Empty for any other remote."""
    found = re.fullmatch(r"(?:https://(?:[^/@]+@)?|ssh://git@|git@)([\w.-]+)[/:]([\w./-]+?)(?:\.git)?/?", remote.strip())
    return f"https://{found[1]}/{found[2]}" if found else ""


def html(trend: Trend, links: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Yields the lines of trend.html. `links` has the addresses of runs and commits."""
    report = document(trend)
    title = escape(one_line(words(report.title)))
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>agentbench: {title}</title>\n<style>{STYLE}{FOCUSED_TOOLTIP}</style>\n</head>\n<body>"
    yield f"<h1>{title}</h1>"
    yield from text(report, 2, lambda name, _titles: links.get(name, ""))
    yield "</body>\n</html>"
