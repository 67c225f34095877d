"""The reference runs: how each is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.reference.workplace import Workplace

BANKING = ("pytest", "scenarios/banking")
LIMIT = "--agentbench-limit=10"
ENDS = (0, 1)  # exit statuses: a test that fails is a result


def banking(place: Workplace) -> Path:
    """The shipped suite on the shipped engine, with objectives and samples."""
    place.init("banking")
    place.run("pytest", "scenarios/banking", "--agentbench-limit=30", "--agentbench-concurrency=4", "--agentbench-slo=ttft=60ms", ends=ENDS)
    return place.latest


def two_arms(place: Workplace) -> Path:
    """Two engines, one of which gets every third tool call wrong, in blocks with an empty cache."""
    place.init("banking")
    place.write("backends/careless.yaml", "kind: embedded\npolicy: careless\nerror_rate: 0.3\n")
    place.run(
        "pytest", "scenarios/banking", LIMIT, "--agentbench-ab=careful=embedded,careless=careless", "--agentbench-cache=cold", ends=ENDS
    )
    return place.latest


def three_concurrencies(place: Workplace) -> Path:
    """One engine at three concurrencies."""
    place.init("banking")
    place.run(*BANKING, LIMIT, "--agentbench-ab=set:concurrency=1|2|4", "--agentbench-ab-pairs", ends=ENDS)
    return place.latest


def resumed(place: Workplace) -> Path:
    """Three customers in a first session, all ten in the one that resumes it."""
    place.init("banking")
    place.run(*BANKING, "--agentbench-limit=3", "--agentbench-name=night", ends=ENDS)
    place.run(*BANKING, LIMIT, "--agentbench-resume=night", "--agentbench-concurrency=2", ends=ENDS)
    return place.latest


def sweep(place: Workplace) -> Path:
    """`agentbench sweep`, whose text is stored beside the report."""
    place.init("banking")
    place.run("pytest_agentbench.cli", "sweep", "scenarios/banking", "--concurrency=2,4", "--slo=ttft=12ms", "--", LIMIT)
    return place.latest


#: Name -> what makes it.
MADE: Mapping[str, Callable[[Workplace], Path]] = {
    "banking": banking,
    "two_arms": two_arms,
    "three_concurrencies": three_concurrencies,
    "resumed": resumed,
    "sweep": sweep,
}
