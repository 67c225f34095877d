"""Sampling parameters of agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.agents.factory import PARAMETERS, make_agent, sampling_of
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import SAMPLING

INFINITE, NAN = float("inf"), float("nan")


def test_every_parameter_is_known() -> None:
    """The table contains all sampling parameters."""
    assert {*SAMPLING} == {*PARAMETERS}


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"temperature": 0.0, "top_p": 0, "max_tokens": 1, "seed": 0, "model": "small"},
        {"temperature": 2.5, "top_p": 1, "max_tokens": 100_000, "seed": -1},
        {},
    ],
)
def test_what_goes_into_requests(settings: dict[str, object]) -> None:
    """Numbers within their ranges are sent as they are written. Other settings of the agent are not sent."""
    assert settings == sampling_of({"kind": "tool_calling", "max_turns": 3, **settings})


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("temperature", (-1, -0.001, "0.0", True, None, NAN, INFINITE, [0.5]), "a number from 0 up"),
        ("top_p", (-0.1, 2, 1.01, "1", False, None, NAN), "a number from 0 to 1"),
        ("max_tokens", (0, -5, 1.5, 77.0, "100", True, None), "a whole number from 1 up"),
        ("seed", (1.5, "1", True, None, 2**63), "a whole number"),
        ("model", ("", 5, None, ["small"]), "the name of a model"),
    ],
)
def test_invalid_values(name: str, values: tuple[object, ...], words: str) -> None:
    """A value with a wrong type or out of range is refused, and the message has the allowed values.

    This also holds for agents with their own code.
    """
    for value in values:
        for kind in ("tool_calling", "react"):
            with pytest.raises(ConfigError) as caught:
                make_agent({"kind": kind, name: value}, Path())

            assert f"agent: {name} must be {words}, not {value!r}" == str(caught.value)


def test_sampling_of_a_wrapped_agent() -> None:
    """Sampling parameters of a wrapped agent are refused, because a rollout has only one set of them."""
    with pytest.raises(ConfigError) as caught:
        make_agent({"kind": "self_evaluating", "wraps": {"kind": "tool_calling", "temperature": 0.5}}, Path())

    assert "agent: wraps: 'temperature' applies to all requests of the rollout; write it beside 'wraps', not in it" == str(caught.value)
