"""The progress line below pytest's dots appears only on a terminal while rollouts run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.session.progress import BEAT, duration_text, log_line, pause, status_line
from pytest_agentbench.session.recorder import RunRecorder
from tests.project import FIND_THEN_ANSWER, PYTEST, TWO_WORKERS, Project
from tests.terminal import Screen, run_on_terminal

EIGHT_IN_FLIGHT = (*TWO_WORKERS, "--agentbench-concurrency=8")

#: The first scenario ends at once, and the others take long enough for the line to be drawn.
UNEVEN = [{"match": {"contains": "shop-0"}, "text": "No."}, *({"ttft_ms": 900, **rule} for rule in FIND_THEN_ANSWER)]

#: With this conftest.py, lines for a log are printed twenty times a second.
QUICK_BEAT = "from pytest_agentbench.session import progress\n\nprogress.BEAT = 0.05\n"


def run(project: Project, *arguments: str) -> tuple[int, str]:
    return run_on_terminal([*PYTEST, *arguments], project.root, child_environment())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "verbosity"),
    [
        pytest.param((), (), id="one-process-dots"),
        pytest.param(EIGHT_IN_FLIGHT, ("-v",), id="n2-verbose"),
        pytest.param((), ("-v",), id="one-process-verbose", marks=pytest.mark.slow),
        pytest.param(EIGHT_IN_FLIGHT, (), id="n2-dots", marks=pytest.mark.slow),
    ],
)
def test_a_line_of_progress(project: Project, way: tuple[str, ...], verbosity: tuple[str, ...]) -> None:
    """The line has finished and planned rollouts, the mean, the speed and the time to go. At the end it is erased, and nothing else is.

    On a terminal there are no lines for a log.
    """
    project.suite(scenarios=3)
    project.backend(UNEVEN)
    project.write("conftest.py", QUICK_BEAT)

    status, written = run(project, *way, *verbosity, "scenarios/shop")

    assert pytest.ExitCode.TESTS_FAILED == status
    assert "agentbench 1/3 · 2 in flight · tsq 0.000 · " in written
    assert " tok/s · " in written
    assert " s to go" in written
    assert "rollouts done" not in written
    shown = str(Screen(written))
    assert "1/3" not in shown
    assert "to go" not in shown
    place = "open        reports/"
    for line in ("test session starts", "agentbench: suites shop (3 scenarios)", place, "1 failed, 2 passed in "):
        assert 1 == shown.count(line)
    if verbosity:
        assert 3 == sum("%]" in line and "test_tools[shop-" in line for line in shown.splitlines())
    elif not way:
        assert re.search(r"^scenarios/shop/test_shop\.py F\.\. +\[100%\]$", shown, re.MULTILINE)


SLOW = """
import time

def test_slow(rollout):
    time.sleep(1.2)
    print("in the test")
    assert rollout.scenario != "shop-0"
"""


def test_progress_stays_out_of_captured_output(project: Project) -> None:
    """The line is drawn while a test runs whose output is captured, and is not part of that output."""
    project.suite(scenarios=3, test=SLOW)
    project.backend(UNEVEN)

    _, written = run(project, "scenarios/shop")

    assert "agentbench 1/3" in written
    shown = str(Screen(written))
    assert re.search(r"-+ Captured stdout call -+\nin the test\n", shown)
    assert "1/3" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-q", "-s", "--agentbench-inline"])
def test_no_progress_where_it_is_not_wanted(project: Project, option: str) -> None:
    """With -q, -s and inline there is no progress line, and there are no lines for a log."""
    project.suite(scenarios=3)
    project.backend(UNEVEN)
    project.write("conftest.py", QUICK_BEAT)

    _, written = run(project, option, "scenarios/shop")

    assert "agentbench 1/3" not in written
    assert "tok/s · " not in written
    assert "rollouts done" not in written


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param((), marks=pytest.mark.slow), EIGHT_IN_FLIGHT], ids=["one-process", "n2"])
def test_progress_lines_of_a_log(project: Project, way: tuple[str, ...]) -> None:
    """If the output is not a terminal, lines say how many rollouts are done, what failed, and how long it takes.

    There is no progress line and no control sequence.
    """
    project.suite(scenarios=3)
    project.backend(UNEVEN)
    project.write("conftest.py", QUICK_BEAT)

    result = project.run(*way, "scenarios/shop")

    lines = [line for line in result.outlines if line.startswith("agentbench ") and "rollouts done" in line]
    assert re.fullmatch(r"agentbench \d of 3 rollouts done · (no tests|1 test) failed · \d s( · about \d+ s to go)?", lines[0]), lines[0]
    assert any(line.startswith("agentbench 1 of 3 rollouts done · ") and line.endswith(" s to go") for line in lines), lines
    result.assert_outcomes(failed=1, passed=2)
    assert "/3 ·" not in result.stdout.str()
    assert "\x1b" not in result.stdout.str()


@pytest.mark.slow
def test_a_quiet_log(project: Project) -> None:
    """With -q a log has dots and no lines between them."""
    project.suite(scenarios=3)
    project.backend(UNEVEN)
    project.write("conftest.py", QUICK_BEAT)

    assert "rollouts done" not in project.run("-q", "scenarios/shop").stdout.str()


@pytest.mark.parametrize(
    ("age", "seconds"), [(0, 30), (600, 30), (1200, 60), (6000, 300), (86_400, 300)], ids=["start", "10 min", "20 min", "100 min", "day"]
)
def test_a_log_does_not_grow_without_end(age: float, seconds: float) -> None:
    """For ten minutes there is a line every 30 seconds. Later lines are rarer, but at most five minutes apart."""
    assert seconds == pause(age, BEAT)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (119.4, "119 s"), (120, "2 min"), (7170, "2 h 00 min"), (7500, "2 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    """Durations are in seconds, then in minutes, then in hours and minutes."""
    assert text == duration_text(seconds)


def test_a_progress_line(tmp_path: Path) -> None:
    """The line has rollouts done and in flight, errors if there are any, the mean score, the speed and the time to go."""
    recorder = RunRecorder(tmp_path, str, print)
    recorder.planned(100, 0, {"shop": 100})
    recorder.began, recorder.tokens = 1000.0, 600

    assert "agentbench 0/100 · 8 in flight · 10 tok/s" == status_line(recorder, 8, 1060.0)
    recorder.done, recorder.errors, recorder.score_sums["tsq"] = 20, 1, (9.5, 19)
    assert "agentbench 20/100 · 8 in flight · 1 error · tsq 0.500 · 10 tok/s · 4 min to go" == status_line(recorder, 8, 1060.0)
    recorder.close()


def test_a_line_of_a_log(tmp_path: Path) -> None:
    """A line has the finished rollouts, failed tests and elapsed time.

    The time to go is missing until this session has finished a rollout.
    """
    recorder = RunRecorder(tmp_path, str, print)
    recorder.planned(100, 20, {"shop": 100})
    recorder.began = 1000.0

    assert "agentbench 20 of 100 rollouts done · no tests failed · 60 s" == log_line(recorder, 0, 1060.0)
    recorder.done = 30
    assert "agentbench 30 of 100 rollouts done · 1 test failed · 60 s · about 7 min to go" == log_line(recorder, 1, 1060.0)
    recorder.done = 100
    assert "agentbench 100 of 100 rollouts done · 2 tests failed · 2 min" == log_line(recorder, 2, 1120.0)
    recorder.close()
