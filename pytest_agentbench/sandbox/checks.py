"""Which checks of a verifier failed, and which were not made: from its CTRF report, or from what pytest and unittest print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

#: A line of pytest (`FAILED tests/test_x.py::test_a - AssertionError`), of unittest (`FAIL: test_a (tests.X)`), or of anybody.
_FAILED = re.compile(r"^(?:FAILED|FAIL:) +(?P<name>\S.*?)(?: - .*)?$", re.MULTILINE)
_ERROR = re.compile(r"^(?:ERROR (?P<pytest>\S*\.py\S*)(?: - .*)?|ERROR: (?P<unittest>\w+ \(.*\)))$", re.MULTILINE)

#: `=== 1 passed, 2 skipped in 0.12s ===`, and unittest's `OK (skipped=2)`.
_SKIPPED = re.compile(
    r"^(?:=+ )?(?:\d+ \w+, )*(?P<pytest>[1-9]\d*) skipped\b.* in [\d.]+s|^(?:OK|FAILED) \(.*skipped=(?P<unittest>[1-9]\d*)", re.MULTILINE
)
_SKIPPED_NAME = re.compile(r"^SKIPPED \[\d+\] (?P<reason>.+)$|^(?=\S+?::\S)(?P<name>\S+) SKIPPED\b", re.MULTILINE)

NOT_MADE = frozenset({"skipped", "pending"})  # statuses of CTRF


class Checks(NamedTuple):
    """The first check that failed and the first that was skipped; empty where there is none, or where nobody tells."""

    failed: str = ""
    skipped: str = ""


def read_checks(ctrf: bytes | None, output: str) -> Checks:
    """By the CTRF report (`ctrf.json`) where there is one that can be read, else by the verifier's output."""
    tests = [*_tests(ctrf)]
    if not tests:
        return _printed(output)
    failed = next((name for name, status in tests if status not in NOT_MADE and status != "passed"), "")
    return Checks(failed, next((name for name, status in tests if status in NOT_MADE), ""))


def _tests(ctrf: bytes | None) -> Iterator[tuple[str, str]]:
    """(name, status) of each test of a report."""
    try:
        report: Any = orjson.loads(ctrf or b"{}")
        tests = report["results"]["tests"]
        yield from [(str(test["name"]), str(test["status"])) for test in tests]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return  # what a report of another form says is in the output as well


def _printed(output: str) -> Checks:
    failed = _FAILED.search(output) or _ERROR.search(output)
    name = next((text for text in failed.groups() if text), "") if failed else ""
    if (count := _SKIPPED.search(output)) is None:
        return Checks(name)
    which = _SKIPPED_NAME.search(output)
    number = count["pytest"] or count["unittest"]
    return Checks(name, (which["name"] or which["reason"]) if which else f"{number} check{'s' * (number != '1')}")
