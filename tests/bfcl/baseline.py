"""Prints the mean scores of a run of the suite by category, as in the suite's README.

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
    """Returns the category of an id, for example `live_multiple` of `live_multiple_0-0-0`."""
    return scenario.rpartition("_")[0]


def selection(category: str) -> str:
    """Returns the value of -k for one category. The bracket prevents `multiple` from matching `live_multiple`."""
    longer = [other for other in CATEGORIES if other.startswith(f"{category}_")]
    return " and not ".join(f"[{each}_" for each in (category, *longer))


def table(rollouts: Iterable[Rollout]) -> Iterator[str]:
    """Yields the lines of the table. Raises an error for a rollout without a score, because a mean without it would be wrong."""
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
