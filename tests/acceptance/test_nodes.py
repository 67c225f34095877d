"""Options of a session whose rollouts run on node workers: each has the same effect as without them, or is refused with a sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from pytest_agentbench.runs.journal import read_journal
from tests.node_workers import lasting
from tests.project import FIND_THEN_ANSWER, TEST_FILE, TWO_WORKERS, Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TWO = "--agentbench-nodes=local:2"
SHOP = "scenarios/shop"

FAILS_ONCE = """
from pathlib import Path

def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]
    assert rollout.scenario != "shop-1" or Path("mended").exists()
"""

USES_LLM = """
import asyncio

def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]

def test_llm(llm):
    assert asyncio.run(llm.chat([{"role": "user", "content": "Hello?"}])).tool_calls[0].name == "find_item"
"""


def nodes_of(project: Project) -> set[str | None]:
    """Returns the node workers that ran the rollouts of scenarios."""
    return {each.node for each in project.rollouts if each.kind == "scenario"}


@pytest.mark.parametrize("way", [(), TWO_WORKERS], ids=["one-process", "n2"])
def test_selection(project: Project, way: tuple[str, ...]) -> None:
    """-k, -x and --lf select tests as without node workers, and only the rollouts of selected tests run."""
    project.suite(scenarios=6, test=FAILS_ONCE)

    assert 0 == project.run(*way, TWO, "-k", "shop-2 or shop-3", SHOP).ret
    assert {"shop-2", "shop-3"} == {each.scenario for each in project.rollouts}

    failed = project.run(*way, TWO, "-x", SHOP)
    assert 1 == failed.parseoutcomes()["failed"]
    assert failed.ret in (1, 2)

    project.write("mended", "")
    again = project.run(*way, TWO, "--lf", SHOP)
    assert 0 == again.ret
    assert {"shop-1"} == {each.scenario for each in project.rollouts}


def test_trials(project: Project) -> None:
    """Three trials of each scenario run on both node workers, and each has one record."""
    project.suite(scenarios=4)

    assert 0 == project.run(TWO, "--agentbench-trials=3", "--agentbench-concurrency=4", SHOP).ret
    assert {(f"shop-{number}", trial): 1 for number in range(4) for trial in (1, 2, 3)} == Counter(
        (each.scenario, each.trial) for each in project.rollouts
    )
    assert {"w1", "w2"} == nodes_of(project)


def test_rounds(project: Project) -> None:
    """Rounds of trials that no test requests run on node workers, until the verdict is final."""
    project.suite(scenarios=20)
    project.run_once(SHOP, "--agentbench-trials=5")
    project.directory.rename(project.root / "reports" / "before")

    rule = "--agentbench-gate=tsq.mean >= -0.25 vs baseline"
    result = project.run(TWO, SHOP, "--agentbench-baseline=before", rule, "--agentbench-trials=auto")

    assert 0 == result.ret, result.outlines
    assert {1: 20, 2: 20} == Counter(each.trial for each in project.rollouts)
    assert {"w1", "w2"} == nodes_of(project)


def test_arms(project: Project) -> None:
    """Blocks of arms are global: no rollout of one arm overlaps one of the other, and each scenario has one node in both arms."""
    project.suite(scenarios=12)
    project.backend([{"ttft_ms": 40, **rule} for rule in FIND_THEN_ANSWER], name="other")

    result = project.run(TWO, "--agentbench-ab=embedded,other", "--agentbench-concurrency=4", SHOP)

    assert 0 == result.ret, result.outlines
    assert 24 == len(project.rollouts)
    ordered = sorted(project.rollouts, key=lambda each: each.started_ns)
    assert all(a.ended_ns <= b.started_ns for a, b in pairwise(ordered) if a.variant != b.variant)
    places = defaultdict(set)
    for each in ordered:
        places[each.scenario].add(each.node)
    assert {1} == {len(names) for names in places.values()}
    assert {"w1", "w2"} == nodes_of(project)


@pytest.mark.parametrize(
    ("option", "ttft_ms", "reason"),
    [
        ("--agentbench-budget-rollout=300ms", 60_000, "0.3 s"),
        ("--agentbench-budget-first-token=200ms", 60_000, "first"),
    ],
)
def test_budgets(project: Project, option: str, ttft_ms: int, reason: str) -> None:
    """The budgets of rollouts and of calls hold on nodes."""
    project.suite(scenarios=2)
    project.backend([{"ttft_ms": ttft_ms, **rule} for rule in FIND_THEN_ANSWER])

    project.run(SHOP, option, "--agentbench-retries=0", "--agentbench-reports=without")
    project.run(TWO, SHOP, option, "--agentbench-retries=0")

    (without,) = (project.root / "without").glob("2*")
    statuses = {each.scenario: each.status for each in read_journal(without)}
    assert {"shop-0", "shop-1"} == statuses.keys()
    assert statuses == {each.scenario: each.status for each in project.rollouts}
    assert all(reason in each.reason for each in project.rollouts)


def test_time_limit(project: Project) -> None:
    """After the session's time limit, no rollout begins on a node."""
    project.suite(scenarios=40)
    project.backend([{"ttft_ms": 300, **rule} for rule in FIND_THEN_ANSWER])

    result = project.run(TWO, SHOP, "--agentbench-time-limit=3s", "--agentbench-concurrency=2")

    assert 0 < len(project.rollouts) < 40
    assert "time limit of 3 s is over" in "\n".join(result.outlines)


def test_retries(project: Project) -> None:
    """Failed attempts are repeated as often as --agentbench-retries says, on any node."""
    project.suite(scenarios=2)
    project.backend([{"status": 503}])

    project.run(TWO, SHOP, "--agentbench-retries=1")

    assert [("infra_error", 2), ("infra_error", 2)] == [(each.status, each.attempt) for each in project.rollouts]


def test_quarantine(project: Project) -> None:
    """A quarantined scenario runs on a node and fails nothing."""
    entry = {"scenario": "shop-1", "owner": "ada", "expires": "2999-12-31", "reason": "the label is disputed"}
    project.suite(scenarios=3, test=FAILS_ONCE, quarantine=[entry])

    result = project.run(TWO, SHOP)

    assert 0 == result.ret, result.outlines
    assert 3 == len(project.rollouts)


def test_inline(project: Project) -> None:
    """Rollouts in the tests' process and on nodes are refused together."""
    project.suite()

    result = project.run(TWO, "--agentbench-inline", SHOP)

    assert 4 == result.ret
    assert "--agentbench-inline runs rollouts in this process, and --agentbench-nodes on node workers; leave out one of them" in str(
        result.errlines
    )


@pytest.mark.parametrize("concurrency", [1, 3, 12])
def test_concurrency(project: Project, concurrency: int) -> None:
    """At most --agentbench-concurrency rollouts run at the same time, whether the slots of the nodes are as many or more."""
    project.suite(scenarios=12)
    project.backend([{"ttft_ms": 100, **rule} for rule in FIND_THEN_ANSWER])

    assert 0 == project.run(TWO, SHOP, f"--agentbench-concurrency={concurrency}").ret
    edges = sorted((stamp, step) for each in project.rollouts for stamp, step in ((each.started_ns, 1), (each.ended_ns, -1)))
    running = [sum(step for _, step in edges[: place + 1]) for place in range(len(edges))]
    assert 1 <= max(running) <= concurrency


def test_recorded(project: Project) -> None:
    """A backend that replays a run answers the calls of nodes."""
    project.suite(scenarios=4)
    project.good_run("base")

    result = project.run(TWO, SHOP, "--agentbench-backend=recorded:reports/base")

    assert 0 == result.ret, result.outlines
    assert 4 == len(project.rollouts)
    assert {"w1", "w2"} >= nodes_of(project)


def test_llm(project: Project) -> None:
    """Calls that a test makes by hand work beside rollouts on nodes, and are recorded on the session's own tap."""
    project.suite(scenarios=3, test=USES_LLM)

    result = project.run(TWO, SHOP)

    assert 0 == result.ret, result.outlines
    assert Counter(scenario=3, adhoc=1) == Counter(each.kind for each in project.rollouts)
    assert {"w1", "w2"} >= nodes_of(project)


def test_the_same_record(project: Project) -> None:
    """A session with two node workers makes the same records as one without, but for times, attempts and names of nodes."""
    project.suite(scenarios=6, test=TEST_FILE)
    project.run(SHOP, "--agentbench-concurrency=2")
    before = lasting(project.rollouts)

    assert 0 == project.run(TWO, SHOP, "--agentbench-concurrency=2").ret
    assert before == lasting(project.rollouts)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--agentbench-nodes=cloud:2",), "the name of a launcher (local"),
        (("--agentbench-nodes=local:0",), "with N from 1 to 1024"),
        (("--agentbench-nodes-wait=5s",), "--agentbench-nodes-wait needs node workers"),
        (("--agentbench-nodes-listen=203.0.113.1:1",), "--agentbench-nodes-listen 203.0.113.1:1: "),
    ],
)
def test_refused_options(project: Project, options: tuple[str, ...], sentence: str) -> None:
    """A wrong value ends the session with the status 4 and a sentence."""
    project.suite()

    result = project.run(*options, SHOP)

    assert 4 == result.ret
    assert sentence in "\n".join(result.errlines)
