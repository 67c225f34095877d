"""Options of agents are validated by their annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pytest

from pytest_agentbench.agents import AGENTS, load_agent
from pytest_agentbench.lib.options import check_options, number, whole

GIVEN: Mapping[str, Mapping[str, Any]] = {"command": {"program": ["sh"]}}  # options without a default
WITHOUT_OPTIONS = ("nothing", "oracle")


@pytest.mark.parametrize("kind", AGENTS)
def test_every_option_of_ours_is_checked(kind: str) -> None:
    """Each option of each built-in agent refuses a value of a wrong type by name. Options that hold another agent are left out."""
    agent = load_agent(kind, Path())
    names = [each.name for each in fields(agent) if not each.metadata.get("agent")]

    assert names or kind in WITHOUT_OPTIONS
    for name in names:
        with pytest.raises(ValueError, match=f"^{name} must be .*, not <object object at "):
            agent(**{**GIVEN.get(kind, {}), name: object()})


@dataclass(frozen=True)
class Options:
    count: Annotated[int, whole(1, 3)] = 1
    share: Annotated[float, number(0, 1)] | None = None
    words: Sequence[str] = ()
    variables: Mapping[str, str] | None = None
    anything: object = None


@pytest.mark.parametrize("given", [{"count": 3}, {"share": 1}, {"share": 0.0}, {"words": ["", "a"]}, {"variables": {}}, {"anything": 3}])
def test_valid_options(given: Mapping[str, Any]) -> None:
    """The ends of a range, None for optional values, empty collections, and any value for an unchecked annotation are accepted."""
    check_options(Options(**given))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 4}, "retry.count must be a whole number from 1 to 3, not 4"),
        ({"count": True}, "retry.count must be a whole number from 1 to 3, not True"),
        ({"count": 2.0}, "retry.count must be a whole number from 1 to 3, not 2.0"),
        ({"count": None}, "retry.count must be a whole number from 1 to 3, not None"),
        ({"share": float("nan")}, "retry.share must be a number from 0 to 1, not nan"),
        ({"share": False}, "retry.share must be a number from 0 to 1, not False"),
        ({"words": "a"}, "retry.words must be a list of texts, not 'a'"),
        ({"variables": {"A": 5}}, "retry.variables must be names and texts, not {'A': 5}"),
    ],
)
def test_invalid_options(given: Mapping[str, Any], sentence: str) -> None:
    """The message has the option, the allowed values and the given value."""
    with pytest.raises(ValueError, match=r"^retry\.") as caught:
        check_options(Options(**given), "retry.")

    assert sentence == str(caught.value)
