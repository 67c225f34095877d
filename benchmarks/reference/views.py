"""Makes all reports of a run as texts, which can be compared line by line."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

from pytest_agentbench.cli.output import PlainOutput, print_document
from pytest_agentbench.reports import comment, markdown, page, sweep
from pytest_agentbench.reports.ci import commands
from pytest_agentbench.reports.document import Document
from pytest_agentbench.reports.page.layout import SCRIPTS, asset
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.terminal import TerminalReporter, rollout_lines
from pytest_agentbench.reports.terminal import write_run as print_run
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.run_file import Run, write_run
from pytest_agentbench.sweep.levels import Criteria, judgements, read_sweep

WIDTHS = (40, 80, 200)  # columns of the terminal
MANY = 1000  # rollouts, from which on they are not all in the texts
DIGITS = 10  # of a number: Python 3.12 adds floats otherwise than 3.11, and NumPy not alike everywhere

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{6,}(?:e[+-]?\d+)?(?![\w.])")
_BLOCK = re.compile(r'(<script type="text/plain" id="block-[^"]*">)([^<]*)')


def views(run: Run, directory: Path) -> dict[str, bytes]:
    """Writes the reports of a run to its directory, which has the journal. Returns them as texts, by file name."""
    write_run(run, directory)
    texts = {
        "run.json": (directory / "run.json").read_text(encoding="utf-8"),
        "report.md": markdown.write(run, directory).read_text(encoding="utf-8"),
        "comment.md": comment.write(run, directory, {}).read_text(encoding="utf-8"),
        "annotations.txt": "\n".join(commands(run, directory)) + "\n",
        "terminal.txt": "\n".join(_terminal(run, directory)),
        "report.html": _page(page.write(run, directory).read_text(encoding="utf-8"), whole=run.plan.rollouts <= MANY),
    }
    if run.imported:
        texts["rollouts.jsonl"] = (directory / JOURNAL).read_text(encoding="utf-8")
    if run.ab and all(arm.concurrency is not None for arm in run.ab.arms):
        texts["sweep.txt"] = _sweep(directory)
    return {name: rounded(text).encode() for name, text in texts.items()}


class MarkedOutput(PlainOutput):
    """A terminal that prints the colour and weight of each line as words before the line."""

    def write_line(self, line: str, **markup: bool) -> None:
        """Prints a line, preceded by the names of its colour and weight."""
        super().write_line(f"[{' '.join(markup)}] {line}" if markup else line)


def _terminal(run: Run, directory: Path) -> Iterator[str]:
    """Yields the terminal report with -q, in three widths, in colours, with -v, and with -vv unless the run is large."""
    report = document(RunView(run, directory, f"reports/{run.id}"))
    outputs: list[tuple[str, TerminalReporter, int, int]] = [
        ("-q", PlainOutput(), -1, WIDTHS[0]),
        *((f"{width} columns", PlainOutput(), 0, width) for width in WIDTHS),
        ("colours", MarkedOutput(), 0, WIDTHS[1]),
        ("-v", PlainOutput(), 1, WIDTHS[1]),
        *([("-vv", PlainOutput(), 2, WIDTHS[1])] if run.plan.rollouts <= MANY else []),
    ]
    for name, output, verbosity, width in outputs:
        rollouts = [*_rollouts(directory, with_tools=verbosity > 1)] if verbosity > 0 else []
        yield _printed(functools.partial(_print_run, name, output, report, verbosity, width, rollouts))


def _print_run(name: str, output: TerminalReporter, report: Document, verbosity: int, width: int, rollouts: list[str]) -> None:
    print(f"$ {name}")
    print_run(output, report, verbosity, width, rollouts)


def _rollouts(directory: Path, *, with_tools: bool) -> Iterator[str]:
    for rollout in read_journal(directory, lambda _: None):
        if rollout.kind == "scenario":
            yield from rollout_lines(rollout, with_tools=with_tools)


def _printed(write: Callable[[], None]) -> str:
    with redirect_stdout(io.StringIO()) as written:
        write()
    return written.getvalue()


def _page(html: str, *, whole: bool) -> str:
    """Returns report.html without script and style, which git compares. Compressed rollouts become lines of JSON (`whole`) or hashes."""
    for text in ("\n".join(asset(f"{name}.js") for name in SCRIPTS), asset("page.css")):
        if text not in html:
            raise ValueError("report.html does not contain its script or style as stored in the package")
        html = html.replace(text, "")
    html = re.sub(r"'sha256-[^']*'", "'sha256'", html)
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_shown(_unpacked(block[2]), whole=whole)}\n", html)


def _shown(rollouts: str, *, whole: bool) -> str:
    return rollouts if whole else f"sha256 {hashlib.sha256(rounded(rollouts).encode()).hexdigest()}"


def _unpacked(block: str) -> str:
    return gzip.decompress(base64.b64decode(block)).decode().replace('},{"suite":', '},\n{"suite":')


def _sweep(directory: Path) -> str:
    measured, terms = read_sweep(directory), Criteria({})
    return _printed(lambda: print_document(sweep.document(measured, judgements(measured, terms), terms)))


def rounded(text: str) -> str:
    """Rounds the numbers in a text to DIGITS digits, which are equal on all machines."""
    return _NUMBER.sub(lambda number: f"{float(number[0]):.{DIGITS}g}", text)
