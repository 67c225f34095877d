"""Hints about calls, in fields of the body and in headers."""

from __future__ import annotations

import pytest

from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.tap.agent_hints import Hints, HintsOfRoles, asks_for_prefill, hints_of
from pytest_agentbench.tap.routing_hints import make_labels

KEY = RolloutKey("shop", "shop-1", "fast", 2)


@pytest.mark.parametrize(
    ("hints", "fields"),
    [
        ({}, {}),
        ({"priority": 0, "strict_priority": 0}, {"agent_hints": {"priority": 0, "strict_priority": 0}}),
        ({"osl": 64}, {"agent_hints": {"osl": 64}}),
        ({"speculative_prefill": True}, {"agent_hints": {"speculative_prefill": True}}),
        ({"total_requests": 4}, {"annotations": ["prefix_id:p", "total_requests:4"]}),
        (
            {"osl": 64, "iat": 250, "priority": 1},
            {"agent_hints": {"priority": 1, "osl": 64}, "annotations": ["prefix_id:p", "osl:64", "iat:250"]},
        ),
        ({"prefix": "{suite}"}, {"annotations": ["prefix_id:p"]}),
    ],
)
def test_fields(hints: Json, fields: Json) -> None:
    """Hints that Dynamo knows are in `agent_hints`. With a hint about a prefix, all of a prefix are annotations."""
    assert fields == Hints(**hints).as_fields("p")


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ({"nvext": {"agent_hints": {"speculative_prefill": True}}}, True),
        ({"nvext": {"agent_hints": {"speculative_prefill": False}}}, False),
        ({"nvext": {"agent_hints": "speculative_prefill"}}, False),
        ({"nvext": ["agent_hints"]}, False),
        ({}, False),
    ],
)
def test_requests_for_speculative_prefills(body: Json, asks: bool) -> None:
    """A request asks for a speculative prefill only with the value true in `agent_hints`."""
    assert asks == asks_for_prefill(body)


@pytest.mark.parametrize(
    ("hints", "headers"),
    [
        ({}, {}),
        ({"priority": 5}, {}),
        ({"osl": 64}, {"x-prefix-id": "p", "x-prefix-osl": "64"}),
        ({"total_requests": 4, "iat": 250}, {"x-prefix-id": "p", "x-prefix-total-requests": "4", "x-prefix-iat": "250"}),
        ({"prefix": "{suite}"}, {"x-prefix-id": "p"}),
    ],
)
def test_headers(hints: Json, headers: Json) -> None:
    """Each hint about a prefix is a header beside the prefix's id."""
    assert headers == Hints(**hints).as_headers("p")


def test_roles() -> None:
    """A role has its own hints in place of the backend's, and the others of the backend."""
    hints = hints_of({"kind": "dynamo", "priority": 5, "osl": 64, "roles": {"judge": {"priority": 0}}})

    assert HintsOfRoles(Hints(priority=5, osl=64), {"judge": {"priority": 0}}) == hints
    assert (Hints(priority=5, osl=64), Hints(priority=0, osl=64)) == (hints.of(""), hints.of("judge"))


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        (None, "i"),
        ("{session}", "i"),
        ("{suite}.{scenario}.{variant}.{trial}.{role}", "shop.shop-1.fast.2.agent"),
        ("a b/{suite}", "a_b_shop"),
        ("x" * 200, "x" * 120),
    ],
)
def test_the_template_of_a_prefix(template: str | None, prefix: str) -> None:
    """The parts of a template are those of the rollout. The prefix id has only characters that a header may have, and is not too long."""
    labels = make_labels({"kind": "session", "headers": ["x-session-id"], "total_requests": 4, "prefix": template})

    assert {"x-session-id": "i", "x-prefix-id": prefix, "x-prefix-total-requests": "4"} == labels.of_rollout("i", KEY, "").headers
