"""One metric of several arms: as many comparisons as there are, which together claim something wrongly as seldom as one alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_agentbench.stats.decisions import INCONCLUSIVE, Decision

Comparing = Callable[[float], Decision]  # at a confidence


def step_down(family: Sequence[Comparing], confidence: float = 0.95) -> list[Decision]:
    """The decisions of a family of comparisons: with probability `confidence` none of those that claim something does so wrongly.

    Holm's procedure (1979, Scandinavian Journal of Statistics 6:65), by intervals in place of p-values: all that are undecided are looked
    at with intervals of 1 - risk / (number of the undecided), and as long as one of them decides so, the others are looked at again, at
    what is a lower confidence now. It needs no assumption on how the comparisons depend on each other, as those do that share an arm. An
    interval that decides is the one of its step, so what is printed agrees with what is claimed. Each of them is at least as wide as that
    of one comparison alone, so each covers with `confidence` at least; all of them at a time would need wider ones (Guilbaud 2008,
    Biometrical Journal 50:678). A family of one is that comparison. A comparison without an interval tests nothing, and leaves the family.
    """
    decisions: dict[int, Decision] = {}
    undecided = [*range(len(family))]
    while undecided:
        level = 1 - (1 - confidence) / len(undecided)
        decisions |= {place: family[place](level) for place in undecided}
        left = [place for place in undecided if decisions[place].verdict == INCONCLUSIVE and decisions[place].low is not None]
        if left == undecided:
            break
        undecided = left
    return [decisions[place] for place in range(len(family))]
