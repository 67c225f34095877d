"""Parameter accuracy: how many of the expected arguments are right.

Use it with labels made by hand. Labels of source `heuristic-v1` contain placeholders ("<account_number>", 0, true) as arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.arguments import accepted, faults
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import ActualCall, ExpectedCall, best_pairs, expected_and_actual

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


class _Pair(NamedTuple):
    """A possible pair of an expected call and an actual call of the same tool, with the result of comparing them."""

    share: float  # share of the expected parameters that are right; 1.0 if none are expected
    correct: int  # number of expected parameters that are right
    expected: int  # position of the expected call
    actual: int  # position of the actual call
    wrong: tuple[str, ...]  # descriptions of wrong parameters


@scorer(range=(0, 1))
def parameter_accuracy(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the mean over expected calls of the share of their parameters that are right.

    - Each expected call is compared with a different actual call of the same tool, in the way that gives the highest value. An expected
      call without such an actual call counts 0, whether or not it has parameters.
    - A call that is expected without parameters counts 1 if it was made. So labels without any parameters give 1.0 only if every
      expected call was made. The explanation says so.
    - Arguments and calls that no label mentions do not count. If no call is expected, the value is 1.0.
    """
    expected, made = expected_and_actual(scenario, rollout)
    pairs = _best(expected, made)
    parameters = sum(len(accepted(each.label)) for each in expected)
    correct = sum(pair.correct for pair in pairs)
    return Score(
        sum(pair.share for pair in pairs) / len(expected) if expected else 1.0,
        {"expected_calls": len(expected), "called": len(pairs), "parameters": parameters, "correct": correct},
        "; ".join([_summary(len(expected), len(pairs), parameters, correct), *_wrong(expected, pairs)]),
    )


def _pair(i: int, expected: ExpectedCall, j: int, made: ActualCall) -> _Pair:
    names, wrong = accepted(expected.label), faults(made.call, expected.label, expected.tool)
    correct = len(names.keys() - wrong.keys())
    distinct = tuple(dict.fromkeys(fault for name, fault in wrong.items() if name in names))
    return _Pair(correct / len(names) if names else 1.0, correct, i, j, distinct)


def _best(expected: Sequence[ExpectedCall], made: Sequence[ActualCall]) -> list[_Pair]:
    """Returns pairs of an expected and an actual call, each call at most once, with the greatest sum of their shares of right parameters.

    Among equal sums, the number of right parameters decides.
    """
    total = sum(len(accepted(each.label)) for each in expected)
    pairs: list[_Pair] = []
    for key in dict.fromkeys(each.key for each in expected):
        rows = [at for at, each in enumerate(expected) if each.key == key]
        columns = [at for at, each in enumerate(made) if each.key == key]
        table = [[_pair(i, expected[i], j, made[j]) for j in columns] for i in rows]
        whole = math.lcm(*(len(accepted(expected[i].label)) or 1 for i in rows))
        worths = [[round(pair.share * whole) * (total + 1) + pair.correct for pair in row] for row in table]
        pairs += [table[i][j] for i, j in best_pairs(worths)]
    return pairs


def _wrong(expected: Sequence[ExpectedCall], pairs: Sequence[_Pair]) -> list[str]:
    return [
        f"{expected[pair.expected].name}: {', '.join(pair.wrong)}" for pair in sorted(pairs, key=lambda each: each.expected) if pair.wrong
    ]


def _summary(expected: int, called: int, parameters: int, correct: int) -> str:
    if not expected:
        return "no calls are expected"
    if not parameters:
        return f"no parameters are expected; {called} of {expected} expected calls were made"
    return f"{correct} of {parameters} expected parameters are right; {called} of {expected} expected calls were made"
