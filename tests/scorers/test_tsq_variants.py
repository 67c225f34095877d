"""The tool selection scores: what each of them counts, and how their values are related."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json, Score, ToolCall
from pytest_agentbench.scorers import Scorer
from pytest_agentbench.scorers.exact_match import exact_match
from pytest_agentbench.scorers.matching import most_pairs
from pytest_agentbench.scorers.schema_valid import schema_valid
from pytest_agentbench.scorers.tsq import tsq, tsq_arguments, tsq_multiset, tsq_ordered, tsq_subset, tsq_superset
from pytest_agentbench.suites.suite import Tool
from tests.scorers.records import records

VARIANTS: list[Scorer] = [tsq, tsq_multiset, tsq_ordered, tsq_arguments]

Call = tuple[str, Json]


def _score(scorer: Scorer, made: list[Call], expected: list[Call]) -> Score:
    labels = [{"tool": name, "parameters": arguments} for name, arguments in expected]
    return scorer(*records([ToolCall(name, arguments, 1) for name, arguments in made], labels))


def _named(names: str) -> list[Call]:
    return [(name, {}) for name in names.split()]


@pytest.mark.parametrize(
    ("made", "expected", "values"),
    [  # tsq, multiset, ordered, arguments
        ("a b c", "a b c", (1.0, 1.0, 1.0, 1.0)),
        ("c b a", "a b c", (1.0, 1.0, 1 / 3, 1.0)),
        ("a a b", "a b", (1.0, 0.8, 0.8, 0.8)),
        ("a b", "a a b", (1.0, 0.8, 0.8, 0.8)),
        ("x a y b", "a b", (2 / 3, 2 / 3, 2 / 3, 2 / 3)),
        ("b a b", "a b", (1.0, 0.8, 0.8, 0.8)),
        ("", "a", (0.0, 0.0, 0.0, 0.0)),
        ("a", "", (0.0, 0.0, 0.0, 0.0)),
        ("", "", (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_values(made: str, expected: str, values: tuple[float, ...]) -> None:
    """Repeats count in all scores but `tsq`, order only in `tsq_ordered`."""
    assert pytest.approx(values) == tuple(_score(scorer, _named(made), _named(expected)) for scorer in VARIANTS)


@pytest.mark.parametrize(
    ("made", "expected", "subset", "superset"),
    [
        ("a b", "b a", 1.0, 1.0),
        ("a", "a b", 1.0, 0.5),
        ("a b c d", "a b", 0.5, 1.0),
        ("a a", "a", 0.5, 1.0),
        ("a", "a a", 1.0, 0.5),
        ("c", "a", 0.0, 0.0),
        ("", "a", 1.0, 0.0),
        ("a", "", 0.0, 1.0),
        ("", "", 1.0, 1.0),
    ],
)
def test_one_side_alone(made: str, expected: str, subset: float, superset: float) -> None:
    """`tsq_subset` ignores missing calls, `tsq_superset` ignores unexpected ones. Both are parts of `tsq_multiset`."""
    both = _score(tsq_subset, _named(made), _named(expected)), _score(tsq_superset, _named(made), _named(expected))

    assert (subset, superset) == both
    if made and expected:
        parts = _score(tsq_multiset, _named(made), _named(expected)).parts
        assert (parts["precision"], parts["recall"]) == both


def test_one_side_is_explained() -> None:
    """The explanations of `tsq_subset` and `tsq_superset` name the faulty calls."""
    subset, superset = (_score(scorer, _named("a x x"), _named("a b")) for scorer in (tsq_subset, tsq_superset))

    assert "1 of 3; unexpected: x (2 times)" == subset.explanation
    assert "1 of 2; missing: b" == superset.explanation


def test_arguments_decide_which_call_is_which() -> None:
    """The number of pairs is as large as possible. A call that fits two labels gets the one that no other call fits."""
    expected: list[Json] = [{"tool": "t", "accepts": {"n": [1, 2]}}, {"tool": "t", "accepts": {"n": [1]}}]

    for made in ([1, 2], [2, 1]):
        assert 1.0 == tsq_arguments(*records([ToolCall("t", {"n": n}, 1) for n in made], expected))


def test_parts_and_explanations() -> None:
    """Parts are precision, recall and the counts. The explanation names the faulty calls and their faults."""
    made: list[Call] = [("order", {"n": 2}), ("find", {}), ("find", {}), ("fly", {})]
    expected: list[Call] = [("find", {}), ("order", {"n": 1}), ("pay", {})]
    parts = {"precision": 0.5, "recall": 2 / 3, "expected": 3, "actual": 4, "matched": 2}

    multiset, ordered, arguments = (_score(scorer, made, expected) for scorer in VARIANTS[1:])

    assert parts == multiset.parts
    assert "precision 0.50, recall 0.67; missing: pay; unexpected: find, fly" == multiset.explanation
    assert "precision 0.25, recall 0.33; missing: pay; unexpected: find, fly; out of order: find" == ordered.explanation
    assert (
        "precision 0.25, recall 0.33; missing: pay; unexpected: find, fly; wrong arguments: order: n is 2, expected 1"
        == arguments.explanation
    )


def test_out_of_order() -> None:
    """A call that was made out of order is neither missing nor unexpected."""
    score = _score(tsq_ordered, _named("b a c"), _named("a b c"))

    assert 2 / 3 == score
    assert "precision 0.67, recall 0.67; missing: none; unexpected: none; out of order: a" == score.explanation


def test_turns() -> None:
    """If labels have turns, calls of different turns do not match. A label without a turn belongs to the first turn."""
    labels: list[Json] = [{"tool": "b", "turn": 2}, {"tool": "a"}]
    calls = [ToolCall("a", {}, 1, user_turn=1), ToolCall("b", {}, 2, user_turn=2)]
    late = [ToolCall("a", {}, 1, user_turn=2), ToolCall("b", {}, 2, user_turn=2)]

    for scorer in (*VARIANTS, exact_match):
        assert 1.0 == scorer(*records(calls, labels))
    assert [0.5] * 4 == [scorer(*records(late, labels)) for scorer in VARIANTS]
    assert "call 1: a was called in turn 2, expected a in turn 1" == exact_match(*records(late, labels)).explanation


@pytest.mark.parametrize(
    ("made", "explanation"),
    [
        ([("a", {"n": "1"}), ("b", {})], "the calls are the expected ones"),
        ([("b", {}), ("a", {"n": 1})], "call 1: b was called, expected a"),
        ([("a", {"n": 2}), ("b", {})], "call 1: a: n is 2, expected 1"),
        ([("a", {"n": 1})], "call 2: b is missing"),
        ([("a", {"n": 1}), ("b", {}), ("b", {})], "call 3: b is not expected"),
    ],
)
def test_exact_match(made: list[Call], explanation: str) -> None:
    """The value is 1.0 for the expected calls in their order and with their arguments, otherwise 0.0 with the first fault."""
    score = _score(exact_match, made, [("a", {"n": 1}), ("b", {})])

    assert explanation == score.explanation
    assert float(explanation.startswith("the calls are")) == score


def test_schema_valid() -> None:
    """Calls of unknown tools and calls with wrong arguments are not valid. Without calls the value is 1."""
    calls = [
        ToolCall("a", {}, 1),
        ToolCall("a", {}, 1, repaired=True),
        ToolCall("fly", {}, 1, problem="unknown_tool", detail="there is no tool 'fly'"),
        ToolCall("b", {}, 1, problem="invalid_arguments", detail="n is missing"),
    ]

    score = schema_valid(*records(calls))

    assert 0.5 == score
    assert {"calls": 4, "valid": 2, "repaired": 1} == score.parts
    assert "fly: unknown_tool (there is no tool 'fly'); b: invalid_arguments (n is missing)" == score.explanation
    assert (1.0, "no call was made") == ((none := schema_valid(*records())), none.explanation)


VALUES = st.sampled_from([1, "1", 2, True, "Rome", " rome"])
CALLS = st.lists(st.tuples(st.sampled_from("abc"), st.dictionaries(st.sampled_from("mn"), VALUES, max_size=2)), max_size=6)


@given(CALLS, CALLS)
def test_bounds(made: list[Call], expected: list[Call]) -> None:
    """All values and both of their parts lie between 0 and 1, and the value is the harmonic mean of the parts."""
    for scorer in VARIANTS:
        score = _score(scorer, made, expected)
        precision, recall = score.parts["precision"], score.parts["recall"]

        assert 0.0 <= min(score, precision, recall) <= max(score, precision, recall) <= 1.0
        assert pytest.approx(2 * precision * recall / (precision + recall) if precision + recall else 0.0) == score


@given(CALLS)
def test_identity(calls: list[Call]) -> None:
    """An agent that makes the expected calls gets 1.0 from all scores."""
    assert [1.0] * 5 == [_score(scorer, calls, calls) for scorer in (*VARIANTS, exact_match)]


@given(CALLS, CALLS, st.randoms(use_true_random=False))
def test_order_of_calls(made: list[Call], expected: list[Call], random: Any) -> None:
    """Neither the order of calls nor that of labels changes a score, except those that measure order."""
    for scorer in (tsq, tsq_multiset, tsq_arguments):
        before = _score(scorer, made, expected)
        shuffled = random.sample(made, len(made)), random.sample(expected, len(expected))

        assert float(before) == float(_score(scorer, *shuffled))


@given(CALLS, CALLS, st.integers(0, 6))
def test_an_additional_wrong_call(made: list[Call], expected: list[Call], at: int) -> None:
    """An unexpected call raises no score, wherever it is inserted."""
    worse = [*made[:at], ("wrong", {}), *made[at:]]

    for scorer in (*VARIANTS, exact_match):
        assert _score(scorer, worse, expected) <= _score(scorer, made, expected)


@given(CALLS, CALLS)
def test_stricter_scores_are_not_higher(made: list[Call], expected: list[Call]) -> None:
    """Order and arguments can only lower the score of names alone, and an exact match has the best scores."""
    multiset = _score(tsq_multiset, made, expected)

    assert _score(tsq_ordered, made, expected) <= multiset
    assert _score(tsq_arguments, made, expected) <= multiset
    if _score(exact_match, made, expected) == 1.0:
        assert [1.0] * 4 == [_score(scorer, made, expected) for scorer in VARIANTS]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=5))
def test_most_pairs(choices: list[list[int]]) -> None:
    """Pairs are disjoint and among the choices. There are as many as a search through all possibilities finds."""

    def most(who: int, free: frozenset[int]) -> int:
        if who == len(choices):
            return 0
        return max([most(who + 1, free), *(1 + most(who + 1, free - {choice}) for choice in choices[who] if choice in free)])

    pairs = most_pairs(choices)

    assert len(set(pairs.values())) == len(pairs)
    assert [] == [who for who, choice in pairs.items() if choice not in choices[who]]
    assert most(0, frozenset(range(5))) == len(pairs)


def test_a_tool_that_the_scenario_does_not_have() -> None:
    """A label's tool is looked up by its normalised name. Its schema decides which arguments are the same."""
    tool = Tool("get_a", "", {"type": "object", "properties": {"code": {"type": "string"}}})
    label = {"tool": "get_a", "parameters": {"code": "07"}}

    assert 0.0 == tsq_arguments(*records([ToolCall("bank__Get-A", {"code": 7}, 1)], [label], [tool]))
    assert 1.0 == tsq_arguments(*records([ToolCall("bank__Get-A", {"code": "07"}, 1)], [label], [tool]))
