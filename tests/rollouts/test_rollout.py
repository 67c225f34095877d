"""Running rollouts: names are resolved, and anything that an agent does becomes a record."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from pytest_agentbench.agents import AGENTS
from pytest_agentbench.errors import AgentError, ConfigError, InfraError, LimitReached
from pytest_agentbench.lib import codec
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Access, Answer, Json, KeptCall, LLMCall, Rollout, RolloutKey, Score
from pytest_agentbench.rollouts.compile import checked
from pytest_agentbench.rollouts.rollout import RolloutSetup, prepare, run_rollout
from pytest_agentbench.runs.journal import record_line, rollout_of
from pytest_agentbench.scorers import SCORERS, Scorer
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite, Tool
from pytest_agentbench.tools.toolbox import Toolbox

KEY = RolloutKey("shop", "s-0")
SCENARIO = Scenario("s-0", ({"role": "user", "content": "A lamp?"},), (Tool("find", "", {"type": "object"}),), ({"tool": "find"},))
SUITE = Suite("shop", Path("scenarios/shop"), (SCENARIO,), dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 1))


CODE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Agent:
    colour: str
    size: int = 3
    async def run(self, scenario, llm, tools): ...

@dataclass(frozen=True)
class Picky:
    size: int = 3
    def __post_init__(self):
        if self.size > 3:
            raise ValueError("size is at most 3")

class Plain:
    async def run(self, scenario, llm, tools): ...

class Idle: ...

class Narrow:
    async def run(self, scenario): ...

class Leaving(Plain):
    def __init__(self):
        raise SystemExit(3)

NOTHING = 5
def polite(scenario, rollout): ...
"""


@pytest.fixture
def folder(forgotten_modules: Path) -> Path:
    """Returns a suite's folder with code of its own."""
    (forgotten_modules / "code.py").write_text(CODE)
    return forgotten_modules


def suite(folder: Path, agent: Json, scorers: Sequence[str] = ("tsq",), **variants: Json) -> Suite:
    return replace(SUITE, folder=folder, agent=agent, scorers={each: {} for each in scorers}, variants=variants)


def test_a_suite_is_prepared(folder: Path) -> None:
    """Options are passed to the agent, and sampling parameters to every request. Recorded settings include the agent's defaults."""
    setup = prepare(
        suite(folder, {"kind": "./code.py:Agent", "colour": "red", "temperature": 0.5, "model": "m"}, ["tsq", "./code.py:polite"]),
        "default",
    )

    assert ("red", 3) == (getattr(setup.agent, "colour", None), getattr(setup.agent, "size", None))
    assert {"temperature": 0.5, "model": "m"} == setup.sampling
    assert {"kind": "./code.py:Agent", "colour": "red", "size": 3, "temperature": 0.5, "model": "m"} == setup.settings
    assert ["tsq", "polite"] == [*setup.scorers]


def test_variants_are_prepared_with_their_settings(folder: Path) -> None:
    """A variant's settings replace the suite's. A class without options gets none."""
    both = suite(folder, {"kind": "./code.py:Plain", "seed": 1}, hot={"seed": 2, "temperature": 1.0})

    assert ({"seed": 1}, {"seed": 2, "temperature": 1.0}) == (prepare(both, "default").sampling, prepare(both, "hot").sampling)


def test_a_variant_of_another_kind() -> None:
    """A variant with another kind of agent does not get the options of the suite's agent. Sampling parameters stay."""
    other = suite(SUITE.folder, {"kind": "tool_calling", "max_turns": 3, "seed": 1}, program={"kind": "command", "program": ["true"]})

    assert {"kind": "command", "program": ["true"], "seed": 1} == other.agent_of("program")


TOOL_CALLING_KEYS = "kind, temperature, top_p, max_tokens, seed, model, stream_upgrade, max_turns, system_prompt, "
TOOL_CALLING_KEYS += "parallel, truncation_retry, max_empty_response_retries"
KNOWN_AGENTS = ", ".join(sorted(AGENTS))


@pytest.mark.parametrize(
    ("agent", "scorers", "sentence"),
    [
        (
            {"kind": "tool_callin"},
            ["tsq"],
            (
                f"no agent 'tool_callin' (did you mean 'tool_calling'?); "
                f"known: {KNOWN_AGENTS}, or an import path such as my_package.agents:tool_callin"
            ),
        ),
        ({}, ["tsq"], f"agent: the key 'kind' is missing; known: {', '.join(AGENTS)}, or an import path"),
        ({"kind": 5}, ["tsq"], f"agent: the key 'kind' is missing; known: {', '.join(AGENTS)}, or an import path"),
        (
            {"kind": "tool_calling", "max_turn": 5},
            ["tsq"],
            f"agent: unknown key 'max_turn' (did you mean 'max_turns'?); known keys of tool_calling: {TOOL_CALLING_KEYS}",
        ),
        *(
            (
                {"kind": "tool_calling", "max_turns": value},
                ["tsq"],
                f"agent: 'tool_calling' cannot be made from its settings: max_turns must be a whole number from 1 up, not {value!r}",
            )
            for value in (0, "12", 1.5, True)
        ),
        (
            {"kind": "tool_calling", "system_prompt": None},
            ["tsq"],
            "agent: 'tool_calling' cannot be made from its settings: system_prompt must be a text, not None",
        ),
        (
            {"kind": "tool_calling"},
            ["tsq", "tqs"],
            f"no scorer 'tqs' (did you mean 'tsq'?); known: {', '.join(SCORERS)}, or an import path such as my_package.scorers:tqs",
        ),
        (
            {"kind": "./code.py:Agent", "colour": "red"},
            ["tqs"],
            f"no scorer 'tqs' (did you mean 'tsq'?); known: {', '.join(SCORERS)}, or an import path",
        ),
        (
            {"kind": "tool_callin"},
            ["./code.py:polite"],
            f"no agent 'tool_callin' (did you mean 'tool_calling'?); known: {KNOWN_AGENTS}, or an import path",
        ),
    ],
)
def test_wrong_names_are_found_early(folder: Path, agent: Json, scorers: list[str], sentence: str) -> None:
    """Wrong names and keys are found before anything boots, also if the suite has code of its own."""
    wrong = suite(folder, agent, scorers)

    for look in (lambda: checked(wrong), lambda: prepare(wrong, "default")):
        with pytest.raises(ConfigError) as caught:
            look()

        assert str(caught.value).startswith(f"{folder}/suite.yaml: {sentence}")


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ({"kind": "./code.py:Agent"}, "agent: './code.py:Agent' cannot be made from its settings: Agent.__init__() missing 1 required"),
        ({"kind": "./code.py:Picky", "size": 4}, "agent: './code.py:Picky' cannot be made from its settings: size is at most 3"),
        ({"kind": "./code.py:NOTHING"}, "agent: './code.py:NOTHING' cannot be made from its settings: 'int' object is not callable"),
        ({"kind": "./code.py:Idle"}, "agent: './code.py:Idle' needs a method `run(self, scenario, llm, tools)`; it is of type Idle"),
        (
            {"kind": "./code.py:Narrow"},
            "agent: './code.py:Narrow': its method `run` should take (scenario, llm, tools), not (scenario): too many positional arg",
        ),
        ({"kind": "./code.py:Leaving"}, "agent: './code.py:Leaving' cannot be made from its settings: 3"),
        ({"kind": "./code.py:Plain", "size": 4}, "agent: unknown key 'size'; known keys of ./code.py:Plain: kind, temperature, top_p, max"),
        ({"kind": "./code.py:Lost"}, "agent './code.py:Lost' cannot be loaded: the module does not define 'Lost'; it defines: Agent,"),
        ({"kind": "./lost.py:Agent"}, "agent './lost.py:Agent' cannot be loaded: FileNotFoundError: there is no file "),
    ],
)
def test_agents_that_cannot_be_made(folder: Path, agent: Json, sentence: str) -> None:
    """An agent of the suite that cannot be loaded or made from its settings causes an error about suite.yaml."""
    with pytest.raises(ConfigError) as caught:
        prepare(suite(folder, agent), "default")

    assert str(caught.value).startswith(f"{folder}/suite.yaml: {sentence}")


class QuietTap:
    """A tap that forwards nothing. It records which tokens are open, and returns the calls that it was given."""

    def __init__(self, *calls: LLMCall, is_lost: bool = False) -> None:
        self.calls, self.is_lost = [*calls], is_lost
        self.open_ids: list[str] = []

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        del key, access
        self.open_ids.append("1")
        return ModelAddress("1", "http://127.0.0.1:9/r/1/v1", "served")

    async def conversation(self, key: RolloutKey, calls: Sequence[KeptCall]) -> list[Json]:
        del key, calls
        return []

    async def said(self, id: str) -> list[Json]:
        del id
        return []

    async def close(self, id: str) -> list[LLMCall]:
        self.open_ids.remove(id)
        if self.is_lost:
            raise InfraError("the tap is gone")
        return self.calls


@dataclass(frozen=True)
class Doing:
    """An agent that runs a function of a test."""

    what: Any

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        del scenario
        await tools.call("find", "{}", 1)
        answer: Answer = await self.what(llm)
        return answer


async def ran(
    what: Any, tap: QuietTap | None = None, *, seconds: float = 60, scorers: dict[str, Scorer] | None = None, **sampling: Any
) -> Rollout:
    """Returns the record of an agent that runs `what`. The tap's token is closed in the end."""
    tap = tap or QuietTap()
    setup = RolloutSetup(Doing(what), scorers or {}, sampling, None, {"kind": "doing"})
    record = await run_rollout(KEY, SCENARIO, setup, tap, None, seconds)

    assert [] == tap.open_ids
    return record


async def answer(llm: LLM) -> Answer:
    del llm
    return Answer("Here it is.")


async def test_a_record_holds_what_was_done() -> None:
    """The record has the agent's answer, calls and settings, the labels, and the requested model."""
    record = await ran(answer, temperature=0.5)

    assert ("ok", "", "Here it is.", ["find"], ["find"]) == (
        record.status,
        record.reason,
        record.answer,
        record.tools,
        record.expected_tools,
    )
    assert {"kind": "doing", "model": "served"} == record.settings
    assert "mine" == (await ran(answer, model="mine")).settings["model"]
    assert KEY == record.key


async def test_sampling_goes_into_every_request() -> None:
    """The client has the sampling parameters. The model is not one of them."""
    seen: list[LLM] = []

    async def look(llm: LLM) -> Answer:
        seen.append(llm)
        return Answer("")

    await ran(look, temperature=0.5, top_p=None, model="mine")

    assert [("mine", {"temperature": 0.5}, "http://127.0.0.1:9/r/1/v1")] == [(llm.model, llm.sampling, llm.base_url) for llm in seen]


async def sleeping(llm: LLM) -> Answer:
    del llm
    await asyncio.sleep(60)
    return Answer("")


def raising(error: BaseException) -> Any:
    async def fail(llm: LLM) -> Answer:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (LimitReached("turns: 3 were not enough"), "limit", "turns: 3 were not enough"),
        (AgentError("lost"), "agent_error", "lost"),
        (InfraError("no network"), "infra_error", "no network"),
        (KeyError("lamp"), "agent_error", "KeyError: 'lamp' (test_rollout.py:"),
        (TimeoutError("its own"), "agent_error", "TimeoutError: its own (test_rollout.py:"),
        (SystemExit(3), "agent_error", "SystemExit: 3 (test_rollout.py:"),
        (asyncio.CancelledError("its own"), "agent_error", "CancelledError: its own (test_rollout.py:"),
    ],
)
async def test_what_an_agent_raises_is_its_status(error: BaseException, status: str, reason: str) -> None:
    """Errors of this package determine the status. Any other exception, even SystemExit, is an agent_error."""
    record = await ran(raising(error))

    assert (status, True, ["find"]) == (record.status, record.reason.startswith(reason), record.tools)


async def test_a_fault_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """The traceback of an agent's or a scorer's error is written to the rollout's log."""
    await ran(raising(KeyError("lamp")))
    await ran(answer, scorers={"mine": scoring(KeyError("shade"))})
    printed = capfd.readouterr().err

    assert 2 == printed.count("Traceback (most recent call last):")
    assert ("KeyError: 'lamp'" in printed, "KeyError: 'shade'" in printed) == (True, True)


async def test_an_agent_without_an_answer() -> None:
    """If an agent returns another type, the reason says what it should return."""

    async def forget(llm: LLM) -> None:
        return None

    record = await ran(forget)

    assert "agent_error" == record.status
    assert re.fullmatch(r"the agent returned 'None' \(NoneType\), not an Answer \(test_rollout\.py:\d+\)", record.reason)


@pytest.mark.parametrize(
    ("answer", "transcript", "reason"),
    [
        (Answer(5), [], "the agent returned an Answer whose text is '5' (int), not a str"),  # type: ignore[arg-type]
        (Answer("x"), ["a text"], "the agent left 'a text' (str) in llm.transcript, which must be a list of messages, each a dict"),
    ],
)
async def test_answers_that_no_record_can_hold(answer: Answer, transcript: list[Any], reason: str) -> None:
    """An answer that is not a text, and a transcript that does not consist of messages, are errors of the agent."""

    async def wrong(llm: LLM) -> Answer:
        llm.transcript[:] = transcript
        return answer

    record = await ran(wrong)

    assert ("agent_error", reason) == (record.status, re.sub(r" \(test_rollout\.py:\d+\)$", "", record.reason))
    assert record == rollout_of(record_line(record))


async def test_an_explanation_is_a_text() -> None:
    """An explanation of a score that is not a text becomes one, so that the record can hold it."""

    def mine(scenario: Scenario, rollout: Rollout) -> Score:
        return Score(1.0, {"words": 3}, 7)  # type: ignore[arg-type]

    record = await ran(answer, scorers={"mine": mine})

    assert ("7", {"words": 3}) == (record.scores["mine"].explanation, record.scores["mine"].parts)
    assert record == rollout_of(record_line(record))


def call(**keys: Any) -> LLMCall:
    """Returns a call as the tap records it."""
    return LLMCall(**{"received_ns": 0, "sent_ns": 0, "ended_ns": 1, **keys})


FAILED = call(error_kind="server_error", http_status=500, error="HTTP 500: it broke")
GONE = call(error_kind="client_gone", error="it hung up", ended_ns=10**18)


@pytest.mark.parametrize(
    ("what", "calls", "status", "reason"),
    [
        (raising(KeyError("choices")), [call()], "agent_error", "KeyError: 'choices'"),
        (
            raising(KeyError("choices")),
            [call(), FAILED],
            "infra_error",
            "HTTP 500: it broke; the agent then ended with KeyError: 'choices'",
        ),
        (raising(LimitReached("turns: 3")), [FAILED], "infra_error", "HTTP 500: it broke; the agent then ended with turns: 3"),
        (answer, [FAILED], "infra_error", "HTTP 500: it broke; the agent answered without it"),
        (answer, [FAILED, call(received_ns=1, ended_ns=2)], "ok", ""),
    ],
)
async def test_the_calls_decide_the_status(what: Any, calls: list[LLMCall], status: str, reason: str) -> None:
    """The calls that the tap recorded decide the status, however the agent reacted to them. Only measured rollouts are scored."""
    record = await ran(what, QuietTap(*calls), scorers={"mine": scoring(Score(1.0))})

    assert (status, True, len(calls)) == (record.status, record.reason.startswith(reason), len(record.calls))
    assert (status == "ok") == bool(record.scores)


async def test_a_budget_that_ends_during_a_call() -> None:
    """If the time ends while a call waits for a token, the fault is the backend's."""
    record = await ran(sleeping, QuietTap(GONE), seconds=0.01)

    assert ("infra_error", True) == (record.status, record.reason.endswith("while a call was waiting for a token of the backend"))


async def test_calls_that_are_lost() -> None:
    """If the tap cannot return the calls, nothing was measured, whatever the agent did."""
    record = await ran(answer, QuietTap(is_lost=True), scorers={"mine": scoring(Score(1.0))})

    assert ("infra_error", "the tap is gone", (), {}) == (record.status, record.reason, record.calls, record.scores)


async def test_time_is_a_limit() -> None:
    """An agent that takes longer than its budget ends as `limit`, and its results are kept."""
    record = await ran(sleeping, seconds=0.01)

    assert ("limit", "time: the rollout took longer than 0.01 s", ["find"]) == (record.status, record.reason, record.tools)


async def test_a_cancelled_rollout_has_no_record() -> None:
    """A cancellation from outside is raised again."""
    running = asyncio.Event()

    async def wait(llm: LLM) -> Answer:
        running.set()
        await asyncio.sleep(60)
        return Answer("")

    task = asyncio.create_task(run_rollout(KEY, SCENARIO, RolloutSetup(Doing(wait), {}, {}, None, {}), QuietTap(), None, 60))
    await running.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


def scoring(value: Any) -> Scorer:
    def score(scenario: Scenario, rollout: Rollout) -> Score:
        if isinstance(value, BaseException):
            raise value
        result: Score = value
        return result

    return score


A_SCORE = "a score, which is a number between -1e+15 and 1e+15"


@pytest.mark.parametrize(
    ("value", "scores", "errors"),
    [
        (Score(0.5, {"part": 1.0}, "why"), {"mine": {"value": 0.5, "parts": {"part": 1.0}, "explanation": "why"}}, {}),
        (0.5, {"mine": {"value": 0.5, "parts": {}, "explanation": ""}}, {}),
        (True, {"mine": {"value": 1.0, "parts": {}, "explanation": ""}}, {}),
        (float("nan"), {}, {"mine": f"ValueError: nan is not {A_SCORE}"}),
        (float("inf"), {}, {"mine": f"ValueError: inf is not {A_SCORE}"}),
        (
            None,
            {},
            {
                "mine": "TypeError: the scorer returned None (NoneType); return a number, or a Score with parts and an explanation "
                "(from pytest_agentbench import Score)"
            },
        ),
        (KeyError("x"), {}, {"mine": "KeyError: 'x'"}),
        (SystemExit(3), {}, {"mine": "SystemExit: 3"}),
    ],
)
async def test_scores(value: Any, scores: Json, errors: dict[str, str]) -> None:
    """A scorer may return a plain number. If it fails or returns another type, the record has a reason instead of a score."""
    record = await ran(answer, scorers={"mine": scoring(value)})

    assert scores == {name: codec.plain(score) for name, score in record.scores.items()}
    assert errors == {name: re.sub(r" \(test_rollout\.py:\d+\)$", "", error) for name, error in record.score_errors.items()}


@pytest.mark.parametrize(("error", "scored"), [(LimitReached("turns"), True), (AgentError("lost"), False), (InfraError("gone"), False)])
async def test_only_evaluable_rollouts_are_scored(error: Exception, scored: bool) -> None:
    """A rollout that reached a limit is scored. An error never becomes a number."""
    assert scored == ("mine" in (await ran(raising(error), scorers={"mine": scoring(Score(1.0))})).scores)


def test_a_record_is_a_line() -> None:
    """A record is read from its line as it was written."""
    record = Rollout(*KEY, status="ok", scores={"tsq": Score(0.5, {"n": 1.0}, "why")}, answer="é\n\u2028", messages=({"role": "user"},))
    line = record_line(record)

    assert b"\n" not in line
    assert record == rollout_of(line)


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"path": Path("a/b")}, {"path": "a/b"}),
        ({"text": "\ud83d"}, {"text": "\ufffd"}),
        ({"text": "\ud83d\ude00\x00"}, {"text": "😀\x00"}),
        ({"big": 10**30}, {"big": 10**30}),
    ],
)
def test_what_is_not_json_is_written_as_text(settings: Json, written: Json) -> None:
    """If user code puts values into a record that are not JSON, they are written as text, so that any reader accepts the record."""
    line = record_line(Rollout(*KEY, status="ok", settings=settings))

    assert b"\n" not in line
    orjson.loads(line)
    assert written == json.loads(line.decode())["settings"]
