"""The only place where agent, model and scorers meet: a job becomes a Rollout."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import orjson

from pytest_agentbench.agents import AGENTS, Agent, load_agent
from pytest_agentbench.agents.toolbox import Toolbox
from pytest_agentbench.capture import capture, clipped
from pytest_agentbench.errors import AgentError, ConfigError, InfraError, LimitReached, RolloutError
from pytest_agentbench.llm import LLM, SAMPLING
from pytest_agentbench.loading import is_import_path
from pytest_agentbench.records import EVALUABLE, Answer, Json, LLMCall, Rollout, RolloutKey, Score
from pytest_agentbench.scenarios import SUITE_FILE, Scenario, Suite, score_name
from pytest_agentbench.scorers import Scorer, load_scorer

if TYPE_CHECKING:
    import aiohttp

#: Setting of every agent: whether its calls that do not stream travel as streams, so that they have a TTFT.
UPGRADE = "stream_upgrade"


class Tap(Protocol):
    """What a rollout needs of the tap."""

    async def open(self, key: RolloutKey, upgrade: bool | None = None) -> tuple[str, str, str]:
        """A fresh token for an attempt: (its id, the base URL that carries it, the model to ask for).

        `upgrade` says whether calls that do not stream travel as streams; None: as each of them asks.
        """

    async def close(self, id: str) -> list[Json]:
        """Ends the token; the LLM calls made under it."""


@dataclass(frozen=True)
class Setup:
    """What all rollouts of one suite and variant share."""

    agent: Agent
    scorers: Mapping[str, Scorer]
    sampling: Json  # sampling parameters of every request
    upgrade: bool | None  # whether calls that do not stream travel as streams; None: those of the built-in client do
    settings: Json  # the agent's settings as they are recorded


def prepare(suite: Suite, variant: str) -> Setup:
    """Resolves the names of a suite; raises ConfigError that names its suite.yaml."""
    settings = suite.agent_of(variant)
    with _names_its_file(suite):
        agent = _agent(settings, suite.folder)
        scorers = {score_name(name): load_scorer(name, suite.folder) for name in suite.scorers}
    sampling = {name: settings[name] for name in SAMPLING if name in settings}
    return Setup(agent, scorers, sampling, settings.get(UPGRADE), _all_options(settings, agent))


def preflight(suite: Suite, variants: Iterable[str]) -> None:
    """Checks the names of a suite before anything boots; code that the suite brings is only imported in the pool."""
    with _names_its_file(suite):
        for settings in map(suite.agent_of, variants):
            if not is_import_path(str(settings.get("kind"))):
                _agent(settings, suite.folder)
        for name in suite.scorers:
            if not is_import_path(name):
                load_scorer(name, suite.folder)


@contextmanager
def _names_its_file(suite: Suite) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{suite.folder / SUITE_FILE}: {error}") from error


def _agent(settings: Json, folder: Path) -> Agent:
    kind = settings.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"agent: the key 'kind' is missing; known: {', '.join(AGENTS)}, or an import path")
    cls = load_agent(kind, folder)
    options = [each.name for each in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    known = ("kind", *SAMPLING, UPGRADE, *options)
    for name in settings:
        if name not in known:
            raise ConfigError(f"agent: unknown key {name!r}; known keys of {kind}: {', '.join(known)}")
    if not isinstance(settings.get(UPGRADE), bool | None):
        raise ConfigError(f"agent: {UPGRADE} should be true or false, not {settings[UPGRADE]!r}")
    try:
        agent: Agent = cls(**{name: settings[name] for name in options if name in settings})
    except Exception as error:  # the class may be the user's: an option without a default, a check of its own, no class at all
        raise ConfigError(f"agent: {kind!r} cannot be made from its settings: {error}") from error
    return agent


def _all_options(settings: Json, agent: Agent) -> Json:
    """The settings with the agent's defaults filled in, so that a run records what it ran with."""
    defaults: Json = dataclasses.asdict(agent) if dataclasses.is_dataclass(agent) and not isinstance(agent, type) else {}
    return {**defaults, **settings}


async def run_rollout(
    key: RolloutKey, scenario: Scenario, setup: Setup, tap: Tap, session: aiohttp.ClientSession | None, budget: float | None
) -> Rollout:
    """Runs the agent once on a scenario, for `budget` seconds at most, and scores what it did.

    Only a cancellation leaves this function as an exception.
    """
    id, base_url, model = await tap.open(key, setup.upgrade)
    sampling = {name: value for name, value in setup.sampling.items() if name != "model"}
    llm = LLM(base_url, str(setup.sampling.get("model") or model), sampling, session)
    tools = Toolbox(scenario.tools)
    started_at, started = time.time(), time.monotonic_ns()
    with capture() as log:
        try:
            status, reason, answer = await _outcome(setup.agent, scenario, llm, tools, budget)
        except asyncio.CancelledError:
            with suppress(InfraError):
                await tap.close(id)
            raise
        ended = time.monotonic_ns()
        try:
            calls = tuple(map(LLMCall.from_dict, await tap.close(id)))
            status, reason = _blamed(status, reason, calls)
        except InfraError as error:
            status, reason, calls = error.status, str(error), ()
        rollout = Rollout(
            *key,
            status=status,
            reason=reason,
            started_at=started_at,
            started_ns=started,
            ended_ns=ended,
            calls=calls,
            tool_calls=tuple(tools.calls),
            expected=scenario.expected,
            answer=answer,
            turns=len(calls),
            messages=tuple(llm.transcript),
            settings={**setup.settings, "model": llm.model},
        )
        scores, score_errors = _scored(rollout, scenario, setup.scorers)
    return dataclasses.replace(rollout, scores=scores, score_errors=score_errors, log=clipped(log.getvalue()))


async def _outcome(agent: Agent, scenario: Scenario, llm: LLM, tools: Toolbox, seconds: float | None) -> tuple[str, str, str]:
    """(status, reason, answer) of one run of the agent."""
    budget = asyncio.timeout(seconds)
    try:
        async with budget:
            answer = await agent.run(scenario, llm, tools)
        if not isinstance(answer, Answer):
            raise AgentError(f"the agent returned {str(answer)[:80]!r} ({type(answer).__name__}), not an Answer")
        return "ok", "", answer.text
    except RolloutError as error:
        return error.status, str(error), ""
    except TimeoutError as error:
        if budget.expired():
            return "limit", f"time: the rollout took longer than {seconds:g} s", ""
        return _agents_fault(error)
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        return _agents_fault(error)  # of a task that the agent cancelled itself
    except (Exception, SystemExit) as error:  # whatever else an agent raises is its own fault, and is shown as such
        return _agents_fault(error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _agents_fault(error: BaseException) -> tuple[str, str, str]:
    traceback.print_exception(error)  # into the rollout's log
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return "agent_error", f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})", ""


def _blamed(status: str, reason: str, calls: Sequence[LLMCall]) -> tuple[str, str]:
    """(status, reason) of a rollout: an agent that fell over a call that failed is not at fault, whatever its client raised."""
    if status != AgentError.status or not calls or calls[-1].error_kind in (None, "client_gone"):
        return status, reason
    if calls[-1].http_status == 400 and "context length" in calls[-1].error.lower():
        return LimitReached.status, f"context: {calls[-1].error}"
    return InfraError.status, f"{calls[-1].error}; the agent then ended with {reason}"


def _scored(rollout: Rollout, scenario: Scenario, scorers: Mapping[str, Scorer]) -> tuple[dict[str, Score], dict[str, str]]:
    """The scores of an evaluable rollout, and why any of them is missing. An error is never a number."""
    scores: dict[str, Score] = {}
    errors: dict[str, str] = {}
    if rollout.status not in EVALUABLE:
        return scores, errors
    for name, scorer in scorers.items():
        try:
            scores[name] = _checked(scorer(scenario, rollout))
        except (Exception, SystemExit) as error:  # a scorer may be the user's code
            traceback.print_exception(error)
            errors[name] = f"{type(error).__name__}: {error}"
    return scores, errors


def _checked(score: float) -> Score:
    """What a scorer returned; a plain number will do, one that is not finite is no measurement."""
    if not math.isfinite(score):
        raise ValueError(f"{float(score)} is not a score")
    return score if isinstance(score, Score) else Score(score)


def record_line(rollout: Rollout) -> bytes:
    """A rollout as a line of the journal. What the user's code left in it need not be JSON; it is then written as text."""
    try:
        return orjson.dumps(rollout.to_dict())
    except TypeError:  # objects in an agent's settings, lone surrogates, integers beyond 64 bits
        return json.dumps(rollout.to_dict(), default=str).encode()
