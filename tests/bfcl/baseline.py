"""The mean scores of a run of the suite by category, as the suite's README has them.

pytest -m bfcl
python -m tests.bfcl.baseline reports/latest
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.suites.datasets.bfcl import CATEGORIES

SCORES = ("tsq", "tsq_arguments", "schema_valid")


def category_of(scenario: str) -> str:
    """`live_multiple` of `live_multiple_0-0-0`."""
    return scenario.rpartition("_")[0]


def selection(category: str) -> str:
    """What -k has to be for one category: the bracket keeps `multiple` from finding `live_multiple`."""
    longer = [other for other in CATEGORIES if other.startswith(f"{category}_")]
    return " and not ".join(f"[{each}_" for each in (category, *longer))


def table(rollouts: Iterable[Rollout]) -> Iterator[str]:
    """The lines of the table; a rollout without a score stops it, for a mean over the others would be another number."""
    scores: dict[str, list[list[float]]] = {category: [] for category in CATEGORIES}
    for rollout in rollouts:
        scores[category_of(rollout.scenario)].append([rollout.score(name) for name in SCORES])
    yield f"| category | scenarios | {' | '.join(f'`{name}`' for name in SCORES)} | command |"
    yield f"|---|---|{'---|' * len(SCORES)}---|"
    for category, rows in scores.items():
        means = " | ".join(f"{fmean(column):.3f}" for column in zip(*rows, strict=True))
        yield f'| `{category}` | {len(rows):,} | {means} | `pytest -m bfcl -k "{selection(category)}"` |'


if __name__ == "__main__":
    print("\n".join(table(read_journal(Path(sys.argv[1])))))
