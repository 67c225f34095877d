"""Messages of isolated processes are decoded as they were sent, and damaged ones are refused with the first fault."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.foreign import USUAL
from pytest_agentbench.lib.wire import Messages, header
from pytest_agentbench.llm.client import ModelFacts
from pytest_agentbench.records import Draft, Rollout, Scale, Score, ToolCall
from pytest_agentbench.rollouts.isolation import protocol as p
from pytest_agentbench.suites.suite import PoolSuite, Scenario, Tool

TEXTS = st.text(st.characters(codec="utf-8"))
NUMBERS = st.integers(0, 2**31)
ANYTHING = st.none() | st.booleans() | NUMBERS | TEXTS | st.lists(NUMBERS)
OBJECTS = st.dictionaries(TEXTS, ANYTHING, max_size=2)
LINES = st.lists(OBJECTS, max_size=2).map(tuple)

FACTS = st.builds(ModelFacts, st.dictionaries(TEXTS, st.none() | TEXTS, max_size=2), st.none() | NUMBERS, st.none() | NUMBERS)
ACCESS = st.builds(p.ModelAccess, TEXTS, TEXTS, FACTS)
TOOLS = st.lists(st.builds(Tool, TEXTS, TEXTS, OBJECTS, OBJECTS), max_size=2).map(tuple)
SCENARIOS = st.builds(Scenario, TEXTS, LINES, TOOLS, LINES, OBJECTS, st.none() | TEXTS, state=OBJECTS, final_state=st.none() | OBJECTS)
SCORES = st.builds(Score, st.floats(-1e9, 1e9), OBJECTS, TEXTS)
CALL = st.builds(ToolCall, TEXTS, OBJECTS, NUMBERS, st.none() | TEXTS, TEXTS, ended_ns=st.none() | NUMBERS)
CALLS = st.lists(CALL, max_size=2).map(tuple)
DRAFTS = st.lists(st.builds(Draft, NUMBERS, TEXTS, tool_calls=CALLS, verdict=st.none() | OBJECTS), max_size=2).map(tuple)
ROLLOUTS = st.builds(Rollout, TEXTS, TEXTS, TEXTS, NUMBERS, TEXTS, tool_calls=CALLS, drafts=DRAFTS, messages=LINES, settings=OBJECTS)
SCALES = st.dictionaries(TEXTS, st.builds(Scale, TEXTS, st.none() | st.floats(-1e9, 1e9), unit=TEXTS, declared=st.booleans()), max_size=2)
WORDS = st.lists(TEXTS, max_size=2).map(tuple)
SUITES = st.builds(PoolSuite, TEXTS, st.just(Path("/shop")), st.lists(SCENARIOS, max_size=2).map(tuple), OBJECTS, timeout=NUMBERS)

#: Reader -> the fields of each of its messages.
MESSAGES: Mapping[Messages[Any], Mapping[Any, Mapping[str, st.SearchStrategy[Any]]]] = {
    p.CONFIG: {p.TemplateConfig: {"suite": SUITES, "variant": TEXTS, "sizes": st.just(USUAL), "sys_path": WORDS, "log_level": NUMBERS}},
    p.LOADED: {p.Loaded: {"judging": WORDS, "settings": OBJECTS}, p.NotLoaded: {"reason": TEXTS}},
    p.ENDED: {p.JobEnded: {"job": NUMBERS, "how": TEXTS, "printed": TEXTS}},
    p.JOBS: {
        p.AgentJob: {"scenario": SCENARIOS, "trial": NUMBERS, "llm": ACCESS, "sampling": OBJECTS},
        p.ScoreJob: {"scorer": TEXTS, "scenario": SCENARIOS, "rollout": ROLLOUTS, "judge": st.none() | ACCESS},
    },
    p.TO_AGENT: {p.RoleOpened: {"llm": ACCESS}, p.RoleRefused: {"reason": TEXTS}, p.StopAgent: {}},
    p.FROM_AGENT: {
        p.CallMade: {"place": NUMBERS, "call": CALL},
        p.TriesSettled: {"calls": CALLS, "drafts": DRAFTS},
        p.RoleQuestion: {"name": TEXTS, "endpoint": st.none() | OBJECTS},
        p.AgentDone: {
            "status": TEXTS,
            "reason": TEXTS,
            "answer": TEXTS,
            "transcript": LINES,
            "tool_calls": CALLS,
            "drafts": DRAFTS,
            "final_state": st.none() | OBJECTS,
        },
        p.JobRefused: {"reason": TEXTS},
    },
    p.FROM_SCORER: {p.Scored: {"score": SCORES}, p.ScoreFailed: {"reason": TEXTS}, p.JobRefused: {"reason": TEXTS}},
    Messages(p.CodeCheckConfig): {p.CodeCheckConfig: {"suite": SUITES, "variants": WORDS, "sys_path": WORDS}},
    p.FROM_CODE_CHECK: {p.Declarations: {"scales": SCALES}, p.NotLoaded: {"reason": TEXTS}},
}
EACH = [pytest.param(reader, kind, id=kind.__name__) for reader, kinds in MESSAGES.items() for kind in kinds]
PER_TYPE = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def crossed(message: object) -> Any:
    """Returns the header of a message's frame as the other process reads it."""
    frame = wire.pack(message)
    return json.loads(frame[8:])


@pytest.mark.parametrize(("reader", "kind"), EACH)
@PER_TYPE
@given(st.data())
def test_there_and_back(reader: Messages[Any], kind: Any, data: st.DataObject) -> None:
    """Each message is decoded as it was sent."""
    message = data.draw(st.builds(kind, **MESSAGES[reader][kind]))

    assert message == reader.read(crossed(message))


@pytest.mark.parametrize(("reader", "kind"), [each for each in EACH if each.id != "StopAgent"])
@PER_TYPE
@given(st.data())
def test_a_damaged_field(reader: Messages[Any], kind: Any, data: st.DataObject) -> None:
    """A field with a wrong type and a missing field raise errors that name the field."""
    name, fields = crossed(data.draw(st.builds(kind, **MESSAGES[reader][kind])))
    damaged = data.draw(st.sampled_from([each.name for each in dataclasses.fields(kind)]))

    with pytest.raises(ValueError, match=rf"^{damaged} is true or false, not "):
        reader.read([name, {**fields, damaged: True}])
    with pytest.raises(ValueError, match=rf"^{damaged} is missing$"):
        reader.read([name, {each: value for each, value in fields.items() if each != damaged}])


@pytest.mark.parametrize("command", [p.Fork(1), p.Kill(2**32 - 1)])
def test_commands(command: p.ForkCommand) -> None:
    """A command has a fixed number of bytes. Anything else is refused."""
    data = p.packed_command(command)

    assert (p.COMMAND_BYTES, command) == (len(data), p.command_in(data))
    for damaged in (data[:-1], b"?" + data[1:], b""):
        with pytest.raises(ValueError, match=r" is not a Fork or Kill command$"):
            p.command_in(damaged)


def test_all_messages_are_tested() -> None:
    """The table above contains all message classes of the module."""
    commands = {*get_args(p.ForkCommand)}
    messages = {value for value in vars(p).values() if dataclasses.is_dataclass(value) and getattr(value, "__module__", "") == p.__name__}

    tested = {kind for kinds in MESSAGES.values() for kind in kinds}
    assert messages - commands - {p.ModelAccess} == tested
    assert [header(p.StopAgent())] == [["StopAgent", {}]]
