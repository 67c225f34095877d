"""Failed and skipped checks of verifiers."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.sandbox.verifier import Checks, read_checks


def ctrf(*statuses: str) -> bytes:
    tests = [{"name": f"test_{number}", "status": status, "duration": 0} for number, status in enumerate(statuses)]
    return json.dumps({"results": {"tool": {"name": "pytest"}, "summary": {}, "tests": tests}}).encode()


@pytest.mark.parametrize(
    ("statuses", "checks"),
    [
        (("passed", "passed"), Checks()),
        (("passed", "failed", "failed"), Checks("test_1")),
        (("passed", "skipped", "failed"), Checks("test_2", "test_1")),
        (("pending",), Checks("", "test_0")),
        (("passed", "other"), Checks("test_1")),
    ],
)
def test_ctrf(statuses: tuple[str, ...], checks: Checks) -> None:
    """A CTRF report is read for its first failed check, and the first check that was skipped."""
    assert checks == read_checks(ctrf(*statuses), "FAILED what_is_printed")


@pytest.mark.parametrize("report", [None, b"", b"[]", b"{", b'{"results": {"tests": []}}', b'{"results": {"tests": [1]}}'])
def test_no_report(report: bytes | None) -> None:
    """Without a valid report, the checks are read from the output."""
    assert Checks("tests/test_x.py::test_a") == read_checks(report, "FAILED tests/test_x.py::test_a - assert 1 == 2\n")


@pytest.mark.parametrize(
    ("output", "checks"),
    [
        ("=== 3 passed in 0.12s ===\n", Checks()),
        (
            "FAILED tests/test_x.py::test_a - Assert\nFAILED tests/test_x.py::test_b\n=== 2 failed in 1.0s ===\n",
            Checks("tests/test_x.py::test_a"),
        ),
        ("ERROR tests/test_x.py - ModuleNotFoundError\n=== 1 error in 0.1s ===\n", Checks("tests/test_x.py")),
        ("ERROR the disk of the agent's own program is full\n", Checks()),
        ("SKIPPED [1] tests/test_x.py:3: no network\n=== 1 passed, 1 skipped in 0.1s ===\n", Checks("", "tests/test_x.py:3: no network")),
        ("tests/test_x.py::test_a SKIPPED (why)  [100%]\n======= 1 skipped in 0.1s =====\n", Checks("", "tests/test_x.py::test_a")),
        ("2 skipped in 0.01s\n", Checks("", "2 checks")),
        ("1 failed, 4 passed, 1 skipped, 2 warnings in 3.45s\n", Checks("", "1 check")),
        ("3 passed, 1 warning in 3.45s\n", Checks()),
        ("they skipped lunch\n12 skipped\n", Checks()),
        ("FAIL: test_a (tests.TestX.test_a)\nFAILED (failures=1)\n", Checks("test_a (tests.TestX.test_a)")),
        ("ERROR: test_b (tests.TestX)\n", Checks("test_b (tests.TestX)")),
        ("Ran 3 tests\n\nOK (skipped=3)\n", Checks("", "3 checks")),
        ("FAILED the numbers do not add up\n", Checks("the numbers do not add up")),
    ],
)
def test_output(output: str, checks: Checks) -> None:
    """The first failure is read from the output of pytest, unittest, and other programs that print `FAILED name`.

    Skips are read for the first two.
    """
    assert checks == read_checks(None, output)
