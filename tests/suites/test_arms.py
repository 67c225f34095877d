"""The variants that a suite gets from the arms of a session."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.arms import Arm, VariantOrigin, in_arms, origins, parse_arms
from pytest_agentbench.suites.suite import DatasetInfo, Suite


def suite(**variants: dict[str, object]) -> Suite:
    return Suite(
        "shop",
        Path("shop"),
        (),
        {"kind": "tool_calling", "top_p": 0.9},
        variants,
        dataset=DatasetInfo("d", "f", "d.json", "0" * 64, "hand", 0),
    )


def test_an_arm_is_a_variant() -> None:
    """Each chosen variant exists once per arm.

    Arms of backends have the same agent; arms of agents have another kind and the suite's sampling.
    """
    backends, agents = parse_arms("a=x,b=y"), parse_arms("agent:tool_calling,agent:react")

    made, names = in_arms(suite(hot={"temperature": 1}), ("default", "hot"), backends)
    assert ("a", "b", "hot-a", "hot-b") == names
    assert made.agent_of("b") == made.agent_of("default")
    assert {**made.agent, "temperature": 1} == made.agent_of("hot-b")
    assert {"a": ("default", "a"), "hot-b": ("hot", "b")}.items() <= origins(("default", "hot"), backends).items()

    other, _ = in_arms(suite(), ("default",), agents)
    assert {"kind": "react", "top_p": 0.9} == other.agent_of("react")
    assert VariantOrigin("default", "react") == origins(("default",), agents)["react"]

    warm, _ = in_arms(suite(hot={"temperature": 1, "max_turns": 3}), ("hot",), agents)
    assert {"temperature": 1, "max_turns": 3}.items() <= warm.agent_of("hot-tool_calling").items()
    assert {"kind": "react", "top_p": 0.9, "temperature": 1} == warm.agent_of("hot-react")


def test_a_name_that_is_taken_is_refused() -> None:
    """An arm with the name of a variant of the suite is refused."""
    with pytest.raises(ConfigError, match=r"the suite has a variant 'hot'; give the arm another name, such as a=agent:x"):
        in_arms(suite(hot={}), ("default",), (Arm("hot", "agent", "x"), Arm("b", "agent", "y")))


def test_arms_that_are_variants() -> None:
    """Arms of variants are the suite's own variants, under the same or another name. An unknown variant is refused."""
    own = dataclasses.replace(suite(hot={"temperature": 1}), sizes={"hot": 3})
    arms = parse_arms("variant:default,variant:hot,warm=variant:hot")

    made, names = in_arms(own, ("default",), arms)

    assert ("default", "hot", "warm") == names
    assert [None, 1, 1] == [made.agent_of(name).get("temperature") for name in names]
    assert {"hot": 3, "warm": 3} == made.sizes
    assert VariantOrigin("default", "warm") == origins(("default",), arms)["warm"]
    assert origins(("default", "hot"), arms).keys() == set(names)  # whatever other variants are chosen
    with pytest.raises(ConfigError, match=r"shop/suite.yaml: the arm variant:odd: no variant 'odd'; known: default, hot"):
        in_arms(own, ("default",), parse_arms("variant:odd,variant:hot"))


def test_arms_that_are_models_or_settings() -> None:
    """An arm of a model or a setting changes only that value of the agent, also if it is nested.

    Settings of the backend or the pool do not change agents.
    """
    own = dataclasses.replace(suite(hot={"temperature": 1}), agent={"kind": "tool_calling", "tools": {"most": 3, "kept": True}})
    deep, names = in_arms(own, ("default", "hot"), parse_arms("set:agent.tools.most=4|5"))
    models, _ = in_arms(own, ("default",), parse_arms("model:big,model:small"))
    width, _ = in_arms(own, ("default",), parse_arms("set:concurrency=1|2"))

    assert ("most_4", "most_5", "hot-most_4", "hot-most_5") == names
    assert {"kind": "tool_calling", "tools": {"most": 5, "kept": True}, "temperature": 1} == deep.agent_of("hot-most_5")
    assert ["big", "small"] == [models.agent_of(name)["model"] for name in ("big", "small")]
    assert own.agent_of("default") == width.agent_of("concurrency_1")
    with pytest.raises(
        ConfigError,
        match=r"--agentbench-set agent\.kind\.x: 'x' cannot be set inside 'tool_calling', which is not a mapping; correct the path",
    ):
        in_arms(own, ("default",), parse_arms("set:agent.kind.x=1|2"))


def test_arms_that_differ_in_several_settings() -> None:
    """An arm of several settings changes the agent and the backend, has a concurrency of its own, and may start from a variant."""
    text = 'a=settings:{},b=settings:{"agent.temperature": 0.7, "backend.router": "k,v", "concurrency": 4, "variant": "hot", "model": "m}"}'
    base, new = arms = parse_arms(text)

    made, names = in_arms(suite(hot={"max_turns": 3}), ("default",), arms)

    assert ("a", "b") == names
    assert made.agent_of("default") == made.agent_of("a")
    assert {"kind": "tool_calling", "top_p": 0.9, "max_turns": 3, "temperature": 0.7, "model": "m}"} == made.agent_of("b")
    assert (None, 4) == (base.concurrency, new.concurrency)
    assert ((), (("router", "k,v"),)) == (base.backend_changes, new.backend_changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=settings:{},b=settings:{1}", "in valid JSON"),
        ('settings:{},b=settings:{"model": "m"}', "with names of their own"),
        ('a=settings:{},b=settings:{"trials": 3}', "not in trials"),
        ('a=settings:{},b=settings:{"concurrency": 0}', "a whole number from 1 up"),
        ("a=settings:{},b=agent:react", "arms of one kind"),
        ("a=settings:{},b=settings:x", "settings:{"),
    ],
)
def test_wrong_arms_of_settings(text: str, words: str) -> None:
    """Arms of several settings are valid JSON, have names, and change only what arms may differ in."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        parse_arms(text)

    assert words in str(caught.value)
