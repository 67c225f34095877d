"""Known weaknesses of the scores of NVIDIA's NeMo Agent Toolkit (in its integration with Dynamo) do not exist here.

Numbers are those of the list in section 9 of the notes on that system. 4, 5 and 6 are about scorers.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError, NoScore, ScorerFailed
from pytest_agentbench.records import STATUSES, Json, Rollout, Score, ToolCall
from pytest_agentbench.rollouts.scores import no_judge, scored, wants_judge
from pytest_agentbench.scorers import SCORERS, load_scorer
from pytest_agentbench.scorers.declaration import scale_of
from pytest_agentbench.suites.suite import Scenario, Tool
from tests.scorers.records import records

TOOLS = [Tool("pay", "", {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}), Tool("look", "", {})]
LABELS: list[Json] = [{"tool": "look", "parameters": {}}, {"tool": "pay", "parameters": {"amount": 5}}]
RIGHT = [ToolCall("look", {}, 1), ToolCall("pay", {"amount": 5}, 2)]


@pytest.mark.parametrize(
    ("calls", "told_by"),
    [
        ([*RIGHT, ToolCall("fly", {}, 3, "unknown_tool")], ["hallucinated", "tsq", "tsq_multiset", "schema_valid", "exact_match"]),
        ([*RIGHT, RIGHT[1]], ["repeated", "tsq_multiset", "exact_match"]),
        (RIGHT[::-1], ["tsq_ordered", "exact_match"]),
        ([RIGHT[0], ToolCall("pay", {"amount": "much"}, 2, "invalid_arguments")], ["schema_valid", "tsq_arguments", "parameter_accuracy"]),
        ([RIGHT[0], ToolCall("pay", {}, 2, "malformed_arguments", raw="5")], ["schema_valid", "tsq_arguments", "parameter_accuracy"]),
        ([RIGHT[0], ToolCall("pay", {"amount": 6}, 2)], ["tsq_arguments", "parameter_accuracy", "exact_match"]),
    ],
    ids=["hallucinated", "repeated", "order", "invalid", "unreadable", "wrong-argument"],
)
def test_mistakes_cost_something(calls: list[ToolCall], told_by: list[str]) -> None:
    """Weakness 4 of the toolkit: unknown tools, repeated calls, wrong order and wrong arguments cost nothing. Here scores measure each."""
    for name in told_by:
        best, result = (load_scorer(name)(*records(made, LABELS, TOOLS)) for made in (RIGHT, calls))

        assert result > best if scale_of(load_scorer(name)).falling else result < best == 1.0


FALLING = {name for name in SCORERS if scale_of(load_scorer(name)).falling}
NAMES = st.sampled_from(["look", "pay", "fly", "bank__Pay", ""])
ARGUMENTS = st.dictionaries(st.sampled_from(["amount", "x"]), st.none() | st.integers(0, 9) | st.text(max_size=3), max_size=2)
OF_MORE_THAN_CALLS = {"exact", "regex", "numeric", "reward", "state_equals"}  # answers, verifiers and states
MADE = st.builds(ToolCall, NAMES, ARGUMENTS, st.just(1), st.sampled_from([None, "unknown_tool", "invalid_arguments"]))


@given(st.lists(MADE, max_size=5), st.lists(st.fixed_dictionaries({"tool": NAMES, "parameters": ARGUMENTS}), max_size=4))
def test_no_score_above_one(calls: list[ToolCall], labels: list[Json]) -> None:
    """Weakness 5 of the toolkit: weights that are not normalised give scores up to 1.4. Here every share is between 0 and 1."""
    of_calls = {name for name in SCORERS if not wants_judge(load_scorer(name))} - OF_MORE_THAN_CALLS
    for name in of_calls - FALLING:
        assert 0.0 <= load_scorer(name)(*records(calls, labels, TOOLS)) <= 1.0


def test_a_wrong_tool_earns_nothing() -> None:
    """Weakness 5 of the toolkit: a wrong tool gets 0.4 if no parameters are expected. Here all scores of tool calls give 0."""
    family = ("tsq", "tsq_multiset", "tsq_ordered", "tsq_arguments", "tsq_subset", "tsq_superset")
    for name in (*family, "exact_match", "parameter_accuracy", "nat_compat"):
        assert 0.0 == load_scorer(name)(*records([ToolCall("look", {}, 1)], [{"tool": "pay", "parameters": {}}], TOOLS))


def test_the_same_name_is_the_same_score() -> None:
    """Weakness 5 of the toolkit: the meaning of "TSQ" differs between configurations. Here no option of a suite changes it."""
    scored_by_name = {name: float(load_scorer(name)(*records(RIGHT[:1], LABELS, TOOLS))) for name in SCORERS if name.startswith("tsq")}

    same = dict.fromkeys(("tsq", "tsq_multiset", "tsq_ordered", "tsq_arguments"), 2 / 3)
    assert {**same, "tsq_subset": 1.0, "tsq_superset": 0.5} == scored_by_name
    for name in scored_by_name:
        with pytest.raises(ConfigError, match="no option 'weight'; known: none"):
            load_scorer(name, options={"weight": 0.4})


def broken(scenario: Scenario, rollout: Rollout) -> Score:
    raise KeyError("evaluation failed")


@pytest.mark.parametrize("status", STATUSES)
def test_an_error_is_not_a_number(status: str) -> None:
    """Weakness 6 of the toolkit: an evaluation error, a crash, a timeout and a dead backend count as 0.0. Here they have no score."""
    scenario, _ = records([], LABELS)
    rollout = Rollout("bank", "s1", "default", 1, status, "because", expected=tuple(LABELS))

    result = asyncio.run(scored(rollout, scenario, {"broken": broken, "tsq": load_scorer("tsq")}, no_judge))

    assert "broken" not in result.scores
    assert (["tsq"] if rollout.evaluable else []) == [*result.scores]
    with pytest.raises(
        ScorerFailed if rollout.evaluable else NoScore, match="evaluation failed" if rollout.evaluable else f"{status}: because"
    ):
        result.score("broken")


@pytest.mark.parametrize("name", sorted(FALLING))
def test_an_error_is_not_the_best_value_either(name: str) -> None:
    """Weakness 6 of the toolkit: an error is 0.0 even if less is better, which is the best value. Here a crashed agent has no count."""
    scenario, _ = records()
    rollout = Rollout("bank", "s1", "default", 1, "agent_error", "KeyError")

    assert {} == asyncio.run(scored(rollout, scenario, {name: load_scorer(name)}, no_judge)).scores
