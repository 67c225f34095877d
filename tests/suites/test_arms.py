"""The arms of an A/B session: what the option may say, and the variants that a suite gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.arms import Arm, Side, in_arms, parse_arms, sides
from pytest_agentbench.suites.suite import DatasetInfo, Suite


def suite(**variants: dict[str, object]) -> Suite:
    return Suite(
        "shop", Path("shop"), (), DatasetInfo("d", "f", "d.json", "0" * 64, "hand", 0), {"kind": "tool_calling", "top_p": 0.9}, variants
    )


@pytest.mark.parametrize(
    ("text", "names", "values"),
    [
        ("vllm,thunder", ("vllm", "thunder"), ("vllm", "thunder")),
        ("old=embedded, new=embedded", ("old", "new"), ("embedded", "embedded")),
        ("backends/one.yaml,http://127.0.0.1:8000/v1", ("one", "127.0.0.1_8000"), ("backends/one.yaml", "http://127.0.0.1:8000/v1")),
        ("agent:tool_calling,b=agent:./agent.py:Mine", ("tool_calling", "b"), ("tool_calling", "./agent.py:Mine")),
        ("a=http://h/v1?x=y,agent=http://g/v1", ("a", "agent"), ("http://h/v1?x=y", "http://g/v1")),
    ],
)
def test_arms_have_names(text: str, names: tuple[str, ...], values: tuple[str, ...]) -> None:
    """An arm is called as its backend, file, host or agent is, or as the user says."""
    arms = parse_arms(text)

    assert names == tuple(arm.name for arm in arms)
    assert values == tuple(arm.value for arm in arms)
    assert {"agent" if "agent:" in text else "backend"} == {arm.kind for arm in arms}


@pytest.mark.parametrize(
    "text", ["one", "a,b,c", "a,", "a,agent:react", "same,same", "x/same.yaml,y/Same.yaml", "default,b", "agent:react,agent:"]
)
def test_what_cannot_be_two_arms_is_refused(text: str) -> None:
    """One arm, three, one of each kind, two of one name, and a name that suites have already are errors that say what would work."""
    with pytest.raises(ValueError, match=r"arms|agents"):
        parse_arms(text)


def test_an_arm_is_a_variant() -> None:
    """Each chosen variant is there once an arm: of backends with the same agent, of agents with another kind and the suite's sampling."""
    backends, agents = parse_arms("a=x,b=y"), parse_arms("agent:tool_calling,agent:react")

    made, names = in_arms(suite(hot={"temperature": 1}), ("default", "hot"), backends)
    assert ("a", "b", "hot-a", "hot-b") == names
    assert made.agent_of("b") == made.agent_of("default")
    assert {**made.agent, "temperature": 1} == made.agent_of("hot-b")
    assert {"a": ("default", "a"), "hot-b": ("hot", "b")}.items() <= sides(("default", "hot"), backends).items()

    other, _ = in_arms(suite(), ("default",), agents)
    assert {"kind": "react", "top_p": 0.9} == other.agent_of("react")
    assert Side("default", "react") == sides(("default",), agents)["react"]


def test_a_name_that_is_taken_is_refused() -> None:
    """An arm cannot be called as a variant of the suite is."""
    with pytest.raises(ConfigError, match=r"it has a variant 'hot'; give the arm another name, such as a=agent:x"):
        in_arms(suite(hot={}), ("default",), (Arm("hot", "agent", "x"), Arm("b", "agent", "y")))
