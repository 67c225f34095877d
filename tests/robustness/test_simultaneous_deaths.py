"""Several parts of a session are killed at the same moment: the session continues, and every rollout is measured once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from itertools import chain, combinations

import psutil
import pytest

from pytest_agentbench.lib.process import lives
from pytest_agentbench.records import Json
from tests.kept import assert_all_kept
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Background]

MODULES = {
    "pool": "pytest_agentbench.rollouts.pool",
    "tap": "pytest_agentbench.tap",
    "engine": "pytest_agentbench.engine",
    "template": "pytest_agentbench.rollouts.isolation",
}

AGENT = """
from pytest_agentbench.agents.tool_calling import ToolCalling


class Own(ToolCalling):
    pass
"""

#: These subsets run in `make test`.
QUICK = [("pool", "tap"), ("template",), ("engine", "template"), ("pool", "tap", "engine", "template")]

SUBSETS = [
    pytest.param(parts, id="+".join(parts), marks=() if parts in QUICK else pytest.mark.slow)
    for parts in chain.from_iterable(combinations(MODULES, size) for size in range(1, 5))
]


def session(project: Project, start: Start, scenarios: int = 12) -> Background:
    """Starts a session whose agent runs in other processes, and waits until it is in the middle."""
    project.suite(scenarios=scenarios, agent={"kind": "./agent.py:Own"}, isolation="process")
    project.write("scenarios/shop/agent.py", AGENT)
    project.backend([{"ttft_ms": 250, **rule} for rule in FIND_THEN_ANSWER])
    background = start("-W", "error", "--agentbench-concurrency=3", "--agentbench-retries=0", "scenarios/shop")
    background.in_the_middle(finished=2)
    return background


def pid_of(background: Background, part: str) -> int:
    """Returns the process id of a part. The processes that a template has forked have the same command line, and are its children."""

    def only() -> list[int]:
        parents = {pid: parent_of(pid) for pid in background.children(MODULES[part])}
        pids = [pid for pid, parent in parents.items() if parent not in parents]
        return pids if len(pids) == 1 else []

    return wait_for(only, f"the {part}")[0]


def parent_of(pid: int) -> int:
    """Returns the parent of a process, or 0 if the process has ended."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return 0


def whole(background: Background, scenarios: int) -> Json:
    """Asserts that every rollout has one record and is ok. Returns run.json."""
    assert 0 == background.ended(120), background.output
    assert dict.fromkeys((f"shop-{number}" for number in range(scenarios)), 1) == Counter(each.scenario for each in background.rollouts)
    assert {"ok"} == {each.status for each in background.rollouts}, background.output
    run: Json = json.loads((background.directory / "run.json").read_text())
    assert {"rollouts": scenarios, "finished": scenarios, "not_run": 0} == run["plan"]
    assert not [pid for pid in background.seen if lives(pid)]
    assert assert_all_kept(background.directory) >= scenarios
    return run


@pytest.mark.parametrize("parts", SUBSETS)
def test_killed_at_once(project: Project, start: Start, parts: tuple[str, ...]) -> None:
    """If any of pool, tap, engine and template die at once, all rollouts are ok without a retry, and the deaths are counted."""
    background = session(project, start)
    pids = [pid_of(background, part) for part in parts]

    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    run = whole(background, 12)
    deaths = run["interruptions"]["deaths"]
    killed = {{"template": "template of shop"}.get(part, part) for part in parts}
    # The template ends with the pool, whether or not it was killed as well.
    if "pool" in parts:
        killed, deaths = killed - {"template of shop"}, {name: count for name, count in deaths.items() if name != "template of shop"}
    assert dict.fromkeys(killed, 1) == deaths


@pytest.mark.slow
@pytest.mark.parametrize("part", ["tap", "engine", "template"])
def test_killed_while_it_starts_again(project: Project, start: Start, part: str) -> None:
    """A part that is killed a second time while it is started again is started once more, and the session continues."""
    background = session(project, start)
    first = pid_of(background, part)

    os.kill(first, signal.SIGKILL)
    (second, *_) = wait_for(lambda: [pid for pid in background.children(MODULES[part]) if pid != first], f"the next {part}")
    os.kill(second, signal.SIGKILL)

    whole(background, 12)
