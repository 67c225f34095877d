"""TSQ that takes a call for the expected one only when its arguments are right as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.arguments import fits
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matches import both_sides, f1, listed, most_pairs

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def tsq_arguments(scenario: Scenario, rollout: Rollout) -> Score:
    """F1 over calls, matched by tool and arguments: as many pairs as can be made, in whatever order the calls were made."""
    expected, made = both_sides(scenario, rollout)
    faults = [[fits(call.call, each.label, each.tool) if call.key == each.key else "" for call in made] for each in expected]
    pairs = most_pairs([[j for j, fault in enumerate(row) if fault is None] for row in faults])
    left = {j: call for j, call in enumerate(made) if j not in pairs.values()}
    missing, wrong = [], []
    for i, each in enumerate(expected):
        if i not in pairs:
            nearest = next((j for j, call in left.items() if call.key == each.key), None)
            if nearest is None:
                missing.append(each.name)
            else:
                del left[nearest]
                wrong.append(f"{each.name}: {faults[i][nearest]}")
    unexpected = listed(call.name for call in left.values())
    remarks = (f"missing: {listed(missing)}", f"unexpected: {unexpected}", f"wrong arguments: {' | '.join(wrong) or 'none'}")
    return f1(len(expected), len(made), len(pairs), *remarks)
