"""Reads JUnit files as GitLab and Azure document it, for tests of what dashboards show.

- GitLab: `doc/ci/testing/unit_test_reports.md` (one `testsuites`, nested `testsuite`, at most 30 MB, the class name is the suite, of
  equal names the first counts, only the text of an element is shown), and the order of elements in `lib/gitlab/ci/parsers/test/junit.rb`.
- Azure: the table of `PublishTestResults@2` (attributes of suites and cases, message and text of an element), and `JunitResultReader.cs`.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

GITLAB_LIMIT = 30 * 10**6  # bytes of a file


class Shown(NamedTuple):
    """A test case as a dashboard shows it."""

    suite: str
    name: str
    status: str
    text: str


def gitlab(file: Path) -> list[Shown]:
    """Returns the test cases that GitLab shows. Its status is that of the first element in the order failure, error, skipped."""
    assert ".xml" == file.suffix
    assert file.stat().st_size < GITLAB_LIMIT
    root = ET.fromstring(file.read_bytes())
    assert "testsuites" == root.tag
    shown: dict[tuple[str, str], Shown] = {}
    for case in root.iter("testcase"):
        key = str(case.get("classname")), str(case.get("name"))
        status, element = _outcome(case, {"failure": "failed", "error": "error", "skipped": "skipped"}, "success")
        text = "" if element is None else (element.text or "")
        shown.setdefault(key, Shown(*key, status, text))
    return list(shown.values())


class AzureRun(NamedTuple):
    """A test run of Azure Pipelines."""

    host: str
    minutes: float  # from its start to its end
    results: list[Shown]


def azure(file: Path) -> AzureRun:
    """Returns the test run that Azure creates. It needs a timestamp of each suite, and leaves out test cases without a name.

    The machine of the run is that of its last suite.
    """
    suites = ET.fromstring(file.read_bytes()).findall("testsuite")
    began = [datetime.fromisoformat(str(suite.get("timestamp"))).timestamp() for suite in suites]
    ended = [start + float(str(suite.get("time"))) for start, suite in zip(began, suites, strict=True)]
    results = []
    for case in (case for suite in suites for case in suite.findall("testcase") if case.get("name")):
        status, element = _outcome(case, {"failure": "Failed", "error": "Failed", "skipped": "NotExecuted"}, "Passed")
        text = "" if element is None else str(element.get("message"))
        results.append(Shown(str(case.get("classname")), str(case.get("name")), status, text))
    return AzureRun(str(suites[-1].get("hostname")), (max(ended) - min(began)) / 60, results)


def _outcome(case: ET.Element, statuses: dict[str, str], passed: str) -> tuple[str, ET.Element | None]:
    for tag, status in statuses.items():
        if (element := case.find(tag)) is not None:
            return status, element
    return passed, None
