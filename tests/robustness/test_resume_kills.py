"""A run that crashes at random moments and is resumed has no missing or duplicate rollouts, and the numbers of an uninterrupted run.

The moments come from a seed, so that a failure can be repeated.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.sessions import read_sessions
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import SEEDS, Background, command_of, descendants
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Start = Callable[..., Background]

SCENARIOS = 24
SLOW = ("--agentbench-concurrency=2", "--agentbench-retries=0", "scenarios/shop")  # Two seconds for all rollouts.
DISK = 1_500_000  # bytes of the small disk


@pytest.fixture
def shop(project: Project) -> Project:
    """A suite whose scores differ, on a slow engine."""
    project.suite(scenarios=SCENARIOS, thresholds={"tsq": 0.0})
    entries = [Project.entry(f"shop-{n}", ("find_item", "order_item", "return_item")[: 1 + n % 3]) for n in range(SCENARIOS)]
    project.write("scenarios/shop/data.json", json.dumps(entries))
    project.backend([{"ttft_ms": 90, **rule} for rule in FIND_THEN_ANSWER])
    return project


def numbers(directory: Path) -> Json:
    """Returns numbers that do not depend on interruptions: scores, and calls of the last attempts."""
    run = json.loads((directory / "run.json").read_text())
    suite = run["suites"]["shop"]
    scores = {name: suite[name] for name in ("rollouts", "scores", "score_errors", "errors")}
    calls = [call for rollout in read_journal(directory) for call in rollout.calls]
    return {**scores, "calls": len(calls), "tokens": sum(call.completion_tokens or 0 for call in calls)}


def uninterrupted(project: Project) -> Json:
    """Returns the numbers of a run with a single session, in another reports directory."""
    result = project.run("--agentbench-concurrency=24", "--agentbench-reports=whole", "scenarios/shop")
    assert 0 == result.ret
    return numbers((project.root / "whole" / "latest").resolve())


def kill(background: Background, what: str) -> None:
    """Ends a session or one of its workers."""
    if what == "worker":
        workers = [pid for pid in descendants(background.process.pid) if "exec(eval(" in command_of(pid)]
        os.kill(workers[0], signal.SIGKILL)
    else:
        os.kill(background.process.pid, signal.Signals[what])


def crash(start: Start, what: str, moments: random.Random, *arguments: str) -> None:
    """Runs a session that is killed after it has recorded some more rollouts, and a random pause."""
    before = sessions_so_far()
    background = start(*arguments, *SLOW)
    wait_for(lambda: sessions_so_far() > before or background.process.poll() is not None, "the session's start")
    recorded, more = len(background.rollouts), moments.randint(0 if what != "worker" else 1, 3)
    if what == "worker":
        wait_for(lambda: "pytest_agentbench.engine" in "".join(map(command_of, descendants(background.process.pid))), "the engine")
        more = max(more, 1)
    wait_for(lambda: len(background.rollouts) >= recorded + more or background.process.poll() is not None, f"{more} more rollouts")
    time.sleep(moments.uniform(0, 0.1))  # The moment is random on purpose.
    assert background.process.poll() is None, background.output

    kill(background, what)

    status = background.ended(60)
    assert {"SIGINT": 2, "SIGTERM": 2, "SIGKILL": -signal.SIGKILL, "worker": 6}[what] == status, background.output
    assert "INTERNALERROR" not in background.output
    # Pytest prints nothing about a session that is still starting.
    if "= agentbench =" in background.output and what != "worker":
        assert f" pytest --agentbench-resume={background.directory.name} " in background.output


def sessions_so_far() -> int:
    """Returns the number of sessions of the project's only run."""
    return sum(len(read_sessions(path.parent)) for path in Path.cwd().glob("reports/2*/sessions.jsonl"))


def finished(project: Project, start: Start, *arguments: str) -> Path:
    """Resumes the run to its end. Returns its directory, in which no rollout is missing or duplicate."""
    background = start(*arguments, "--agentbench-resume", "--agentbench-concurrency=24", "scenarios/shop")
    assert 0 == background.ended(60), background.output
    ids = [rollout.scenario for rollout in background.rollouts]
    assert sorted(f"shop-{number}" for number in range(SCENARIOS)) == sorted(ids)
    lines = (background.directory / "rollouts.jsonl").read_bytes().splitlines()
    run = json.loads((background.directory / "run.json").read_text())
    assert SCENARIOS + run["repeated"] == len(lines)
    assert SCENARIOS == sum(each["rollouts"] for each in run["sessions"])
    assert {"rollouts": SCENARIOS, "finished": SCENARIOS, "not_run": 0} == run["plan"]
    assert run["resume"] is None
    return background.directory


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_at_random_moments(shop: Project, start: Start, seed: int) -> None:
    """After four crashes and a last session, a run has the numbers of an uninterrupted run."""
    moments = random.Random(seed)
    order = moments.sample(["SIGKILL", "SIGKILL", "SIGINT", "SIGTERM"], 3)

    for number, what in enumerate([*order, "worker"]):
        way = ("-n", "2") if what == "worker" or moments.random() < 0.3 else ()
        crash(start, what, moments, *way, *(("--agentbench-resume",) if number else ()))

    assert uninterrupted(shop) == numbers(finished(shop, start, *moments.choice([(), ("-n", "2")])))


@pytest.fixture
def small_disk(shop: Project) -> Iterator[Path]:
    """reports/ on a separate disk, which is soon full."""
    reports = shop.root / "reports"
    reports.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "agentbench-test", str(reports)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT RUN: a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield reports
    subprocess.run(["umount", "--lazy", str(reports)], check=True)


def test_a_disk_that_is_full_four_times(shop: Project, start: Start, small_disk: Path) -> None:
    """Records that do not fit are missing, and the others are complete.

    With space again, the resumed run has the numbers of an uninterrupted run.
    """
    moments = random.Random(5)
    filler = small_disk / "filler"

    for number in range(4):
        filler.unlink(missing_ok=True)
        free = os.statvfs(small_disk)
        room = moments.randint(6, 8) * 4096
        filler.write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - room))
        background = start(*(("--agentbench-resume",) if number else ()), *SLOW)

        assert background.ended(60) in (4, 6), background.output
        assert "INTERNALERROR" not in background.output
        assert ("infra_error: the record could not be written: [Errno " in background.output) or ("cannot be written" in background.output)
        assert len(background.rollouts) < SCENARIOS

    filler.unlink()
    assert uninterrupted(shop) == numbers(finished(shop, start))
