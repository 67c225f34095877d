"""A restarted pool and a resumed session continue from the journal and attempts.jsonl, and reach the same result wherever the run
stopped.
"""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_agentbench.backends.embedded import EmbeddedSpec
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.protocol import PoolSettings, Scheduling
from pytest_agentbench.rollouts.questions_of_tests import GetRollout, PlanSelected, PoolAddress
from pytest_agentbench.runs.attempts import AttemptLog, PoolDied
from pytest_agentbench.runs.journal import earlier_work, read_journal
from pytest_agentbench.sandbox.factory import TaskImages
from pytest_agentbench.session.pool_connection import PoolConnection
from pytest_agentbench.session.processes import Services
from pytest_agentbench.session.recorder import RunRecorder
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Suite
from pytest_agentbench.tap.protocol import Budgets
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import SEEDS, Background
from tests.rollouts.pool.test_server import pool_settings
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MOMENTS = 20  # Number of times at which both files are copied.
# The pool dies after these copies. With a third death a rollout could be blamed, which depends on the session.
KILLS = (5, 12)
SCENARIOS = 30
CONCURRENCY = 4
RETRIES = 2
#: The first call of a scenario in BROKEN always fails, and that of one in FLAKY fails once.
BROKEN, FLAKY = (3, 11, 19, 27), (5, 6, 17, 23)


def rules(delay_ms: float) -> list[dict[str, object]]:
    """Returns the rules of an engine on which some scenarios end as infra_error after all retries, and some succeed after one."""
    broken = [{"match": {"contains": f"Customer shop-{number}:"}, "status": 500} for number in BROKEN]
    flaky = [{"match": {"contains": f"Customer shop-{number}:", "call": 1}, "status": 500} for number in FLAKY]
    return [{"ttft_ms": delay_ms, **rule} for rule in (*broken, *flaky, *FIND_THEN_ANSWER)]


class Ending(NamedTuple):
    """The result of a rollout, without times and without the details of the interruption."""

    status: str
    scores: dict[str, float]
    attempts: tuple[tuple[str, str, int], ...]  # Status, reason and number of calls of each attempt.

    @classmethod
    def of(cls, rollout: Rollout) -> Ending:
        attempts = ((each.status, each.reason.split(": ")[0], len(each.calls)) for each in rollout.attempts)
        return cls(rollout.status, {name: float(score) for name, score in rollout.scores.items()}, tuple(attempts))


def copies(project: Project, background: Background, moments: random.Random) -> Iterator[Path]:
    """Yields copies of the run directory at random moments. All processes of the session are suspended during a copy."""
    for number in range(MOMENTS):
        time.sleep(moments.uniform(0, 0.5))  # The moment is random on purpose.
        if background.process.poll() is not None:
            return
        os.kill(background.process.pid, signal.SIGSTOP)
        try:
            copy = project.root / "copies" / str(number)
            copy.mkdir(parents=True)
            for name in ("rollouts.jsonl", "attempts.jsonl"):
                shutil.copy(background.directory / name, copy)
        finally:
            os.kill(background.process.pid, signal.SIGCONT)
        yield copy


@contextmanager
def services(directory: Path, session: int, settings: PoolSettings, project: Project) -> Iterator[PoolConnection]:
    """Runs the processes of a session on an existing run, and yields a test process's connection to its pool."""
    redactor, notices = Redactor(), queue.SimpleQueue[str]()
    recorder, log = RunRecorder(directory, redactor, lambda _: None), AttemptLog(directory, session, redactor, notices.put)
    recorder.stored = earlier_work(recorder.journal.index, session, ())
    if session == 1:
        log.append(PoolDied("the pool died (exit code -9)"))
    backend = EmbeddedSpec(kind="embedded", name="embedded", policy="script", script=str(project.root / "quick.yaml")).make(None)  # type: ignore[arg-type]
    folder = directory / f"logs-{session}"
    (folder / "backend").mkdir(parents=True)
    images = TaskImages({}, settings.run, notices.put)
    running = Services(backend, folder, settings, 1, Budgets(), recorder, log, redactor, notices, images=images, insists=True)
    try:
        with closing(PoolConnection(PoolAddress(running.port, running.token), lambda: running.failure)) as pool:
            yield pool
    finally:
        running.finish()
        recorder.close()
        log.close()


def ends(copy: Path, session: int, suite: Suite, project: Project) -> dict[str, Ending]:
    """Maps each scenario to its result if a pool of this session continues the run in a copy."""
    directory = copy.with_name(f"{copy.name}-session-{session}")
    shutil.copytree(copy, directory)
    scheduling = Scheduling(CONCURRENCY, RETRIES, keep_order=False, durations={})
    settings = pool_settings(suite, session=session, run=directory.name, scheduling=scheduling)
    keys = tuple(RolloutKey("shop", each.id) for each in suite.scenarios)
    with services(directory, session, settings, project) as pool:
        pool.ask(PlanSelected(keys, {"shop": len(keys)}))
        for key in keys:
            pool.ask(GetRollout(key))
    rollouts = [*read_journal(directory)]
    assert sorted(each.id for each in suite.scenarios) == sorted(each.scenario for each in rollouts)
    return {each.scenario: Ending.of(each) for each in rollouts}


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_both_reach_the_same_result(project: Project, start: Callable[..., Background], seed: int) -> None:
    """From copies at twenty moments, a new pool of the same session and a pool of the next session produce the same records.

    These have the same status, scores and attempts with their number of calls. Used retries remain used.
    """
    moments = random.Random(seed)
    suite = load_suite(project.suite(scenarios=SCENARIOS))
    project.backend(rules(400))
    project.write("quick.yaml", json.dumps(rules(0)))
    background = start(f"--agentbench-concurrency={CONCURRENCY}", f"--agentbench-retries={RETRIES}", "scenarios/shop")
    wait_for(lambda: [*background.root.glob("reports/2*/attempts.jsonl")], "the log of attempts")
    made, kills = [], 0
    for copy in copies(project, background, moments):
        made.append(copy)
        if background.rollouts and len(made) >= [*KILLS, MOMENTS + 1][kills]:
            kills += 1
            os.kill(background.child("pytest_agentbench.rollouts.pool"), signal.SIGKILL)
    assert (MOMENTS, len(KILLS)) == (len(made), kills), background.output

    differences = []
    for copy in made:
        pool, resumed = (ends(copy, session, suite, project) for session in (1, 2))
        differences += [
            (copy.name, scenario, pool[scenario], resumed[scenario]) for scenario in pool if pool[scenario] != resumed[scenario]
        ]

    assert [] == differences
