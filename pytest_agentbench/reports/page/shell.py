"""The file itself: one style, one script, both allowed by their hash alone, and data that nothing runs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.records import Json
from pytest_agentbench.reports.page.data import RunData, encoded

#: Files of the one script in their order: a function may use those of files before its own at once, all others later.
SCRIPTS = ("dom", "data", "charts", "timeline", "rollout", "table", "speed", "compare", "main")
LIVE = ("live",)  # of a page that is served while its run goes on
#: Parts of the page that the script fills, and their titles.
SECTIONS: Mapping[str, str] = {"scenarios": "Scenarios", "compare": "Comparison", "speed": "Speed"}


def asset(name: str) -> str:
    """The text of a file that came with the package."""
    return (files("pytest_agentbench.reports.page") / "assets" / name).read_text(encoding="utf-8")


def page(title: str, first: str, runs: Sequence[RunData], compared: Sequence[Json], *, live: bool = False) -> str:
    """The whole file. `first` is HTML; `compared`: intervals of differences; `live`: it asks whoever serves it for what is new."""
    script, style = "\n".join(asset(f"{name}.js") for name in (*SCRIPTS[:-1], *(LIVE if live else ()), SCRIPTS[-1])), asset("page.css")
    index = {"live": live, "runs": [{**run.index, "blocks": len(run.blocks)} for run in runs], "compared": compared}
    return "\n".join(_lines(title, policy(script, style, live=live), style, first, _data(index, runs), script)) + "\n"


def policy(script: str, style: str, *, live: bool = False) -> str:
    """The Content-Security-Policy: nothing is loaded or sent, `live` but from and to whoever serves the page, and no other script runs."""
    rules = [
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        *(["connect-src 'self'"] if live else []),
    ]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _lines(title: str, csp: str, style: str, first: str, data: Iterator[str], script: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{csp}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">'
    yield f"<title>agentbench: {escape(one_line(title))}</title>\n<style>{style}</style>\n</head>\n<body>"
    yield '<a class="skip" href="#scenarios">To the scenarios</a>'
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in SECTIONS.items())
    yield f'<header><a class="brand" href="#top">agentbench</a><nav aria-label="Parts of the page" hidden>{links}</nav></header>'
    yield '<p id="live" hidden><span role="status"></span> <span></span></p>'
    yield f'<main id="top">\n<div id="first">\n{first}\n</div>'
    for name, heading in SECTIONS.items():
        yield f'<section id="{name}" aria-labelledby="{name}-title" hidden><h2 id="{name}-title">{heading}</h2></section>'
    yield "</main>"
    yield "<noscript><p>Scenarios, transcripts and pictures need JavaScript, which is off. The report above needs none.</p></noscript>"
    yield '<dialog id="rollout" aria-label="One rollout"></dialog>'
    yield from data
    yield f"<script>{script}</script>\n</body>\n</html>"


def _data(index: Json, runs: Sequence[RunData]) -> Iterator[str]:
    yield f'<script type="application/json" id="index">{inert(index)}</script>'
    for run, data in enumerate(runs):
        for number, block in enumerate(data.blocks):
            yield f'<script type="text/plain" id="block-{run}-{number}">{block}</script>'


def inert(value: object) -> str:
    """JSON inside a script element: no text in it ends the element or begins a comment."""
    return encoded(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
