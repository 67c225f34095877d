"""The first scenarios of what is selected: --agentbench-limit counts what -k, -m, --deselect, --lf and node ids have left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pytest_agentbench.records import RolloutKey


def first_scenarios(keys: Iterable[RolloutKey], ids: Mapping[str, Sequence[str]], limit: int) -> set[tuple[str, str]]:
    """(suite under a variant, scenario) of the first scenarios of each that are among `keys`, in the order of the data set.

    `ids` has the scenarios of each suite.
    """
    places = {suite: {scenario: place for place, scenario in enumerate(scenarios)} for suite, scenarios in ids.items()}
    selected: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for key in keys:
        selected[key.suite, key.group].add(key.scenario)
    return {
        (group, scenario)
        for (suite, group), scenarios in selected.items()
        for scenario in sorted(scenarios, key=lambda scenario: places[suite].get(scenario, -1))[:limit]
    }
