"""Hints of calls, in all forms in which clients send them, and the further calls of sessions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.router.hints import SentHints, SessionBudgets, WrongHint, read_hints
from pytest_agentbench.tap.routing_hints import make_labels

LEARNT = {"role": "judge", "calls": 9, "tokens_p50": 900.0, "tokens_p90": 2000.0, "next_ms": 20.0}


@pytest.mark.parametrize(
    ("headers", "nvext", "expected"),
    [
        ({}, None, SentHints()),
        ({"x-session-id": "s"}, None, SentHints("s")),
        ({"x-dynamo-session-id": "d", "x-session-id": "s"}, None, SentHints("s")),
        (
            {"x-session-id": "s", "x-prefix-id": "p", "x-prefix-total-requests": "7", "x-prefix-osl": "HIGH", "x-prefix-iat": "50"},
            None,
            SentHints("p", 7, "HIGH", "LOW"),
        ),
        ({}, {"agent_hints": {"prefix_id": "p", "total_requests": 7, "osl": 128, "iat": 750}}, SentHints("p", 7, "LOW", "HIGH")),
        ({}, {"annotations": ["prefix_id:p", "total_requests:7", "osl:medium", "iat:50", "other:1"]}, SentHints("p", 7, "MEDIUM", "LOW")),
        (
            {"x-prefix-osl": "LOW"},
            {"agent_hints": {"osl": 4000}, "annotations": ["osl:512", "iat:900"]},
            SentHints("", None, "LOW", "HIGH"),
        ),
        ({}, {"agent_hints": {"priority": 5, "prefix_id": ""}}, SentHints()),
        ({}, {"agent_hints": ["no object"], "annotations": "no list"}, SentHints()),
        ({}, "no object", SentHints()),
    ],
)
def test_forms(headers: dict[str, str], nvext: Any, expected: SentHints) -> None:
    """Hints are read from headers, from `nvext.agent_hints` and from `nvext.annotations`, in this order."""
    assert expected == read_hints(headers, {} if nvext is None else {"nvext": nvext})


@pytest.mark.parametrize("options", [{"kind": "dynamo"}, {"kind": "session", "headers": ["x-session-id"]}], ids=["annotations", "headers"])
@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({"total_requests": 12, "osl": 128, "iat": 750, "prefix": "{suite}.{role}"}, SentHints("shop.judge", 12, "LOW", "HIGH")),
        ({"total_requests": 12, "roles": {"judge": {"total_requests": 2}}}, SentHints("s", 2)),
        ({"table": [{**LEARNT, "turn": 1, "remaining": 6.0}, {**LEARNT, "turn": 2, "remaining": 5.0}]}, SentHints("s", 7, "HIGH", "LOW")),
        ({}, SentHints("s")),
    ],
    ids=["static", "of a role", "learnt", "none"],
)
def test_hints_of_a_backend(options: Json, hints: Json, expected: SentHints) -> None:
    """The router reads all hints in the `labels` of a backend's YAML, both as annotations and as headers."""
    label = make_labels({**options, **hints}).of_rollout("s", RolloutKey("shop", "shop-1"), "judge")
    call = label.of_call(1)

    assert expected == read_hints(call.headers, call.fields)


@pytest.mark.parametrize(
    ("headers", "hints", "message"),
    [
        ({"x-prefix-total-requests": "many"}, {}, "x-prefix-total-requests must be a number of calls, 1 or more, not 'many'"),
        ({"x-prefix-total-requests": "0"}, {}, "x-prefix-total-requests"),
        ({"x-prefix-osl": "long"}, {}, "x-prefix-osl must be LOW, MEDIUM, HIGH or a number, not 'long'"),
        ({}, {"iat": -1}, "nvext.agent_hints.iat"),
        ({}, {"osl": True}, "nvext.agent_hints.osl"),
        ({}, {"total_requests": 2.5}, "nvext.agent_hints.total_requests"),
        ({}, {"total_requests": "inf"}, "nvext.agent_hints.total_requests"),
    ],
)
def test_wrong_hints(headers: dict[str, str], hints: dict[str, Any], message: str) -> None:
    """A hint that cannot be used is an error that names its place."""
    with pytest.raises(WrongHint, match=message):
        read_hints(headers, {"nvext": {"agent_hints": hints}})


def test_budget_of_a_known_session() -> None:
    """A session that names its number of calls has one further call less after each, and is forgotten after the last."""
    budgets = SessionBudgets(10, 60)

    assert [2, 1, 0] == [budgets.count("s", 3) for _ in range(3)]
    assert 0 == len(budgets)
    assert [4, 3] == [budgets.count("t", 5), budgets.count("t", 2)]


def test_budget_of_an_unknown_session() -> None:
    """A session that does not name its number of calls always has a further one. A call without a session has none."""
    budgets = SessionBudgets(3, 60)

    assert [2, 1, 1, 1] == [budgets.count("s", None) for _ in range(4)]
    assert 0 == budgets.count("", None)
    assert 1 == len(budgets)


def test_sessions_expire() -> None:
    """A session without calls for its time to live is forgotten, and begins anew."""
    now = [0.0]
    budgets = SessionBudgets(10, 60, lambda: now[0])
    budgets.count("s", None)
    now[0] = 59.0
    assert 8 == budgets.count("s", None)
    now[0] = 120.0

    assert 9 == budgets.count("s", None)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(1, 9)))))
def test_budgets_are_never_negative(calls: list[tuple[str, int | None]]) -> None:
    """For any calls, the number of further calls is not negative, and only open sessions are remembered."""
    budgets = SessionBudgets(5, 60)

    assert all(budgets.count(prefix, total) >= 0 for prefix, total in calls)
    assert len(budgets) <= 3
