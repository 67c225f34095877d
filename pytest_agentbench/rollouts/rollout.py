"""The only place where agent, model and scorers meet: a job becomes a Rollout."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import UPGRADE, all_options, brings_code, is_black_box, make_agent
from pytest_agentbench.agents.run import work
from pytest_agentbench.agents.sampling import sampling_of
from pytest_agentbench.errors import ConfigError, InfraError, RolloutError
from pytest_agentbench.lib.capture import capture
from pytest_agentbench.lib.loading import is_import_path
from pytest_agentbench.lib.threads import is_async, off_the_loop
from pytest_agentbench.llm.access import Lines, Tap
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.metrics.blame import judged
from pytest_agentbench.records import Access, Json, Rollout, RolloutKey
from pytest_agentbench.rollouts.scoring import scored
from pytest_agentbench.rollouts.underway import AGENT, underway
from pytest_agentbench.scorers import Scorer, check_scores, load_scorer
from pytest_agentbench.suites.suite import SUITE_FILE, Scenario, Suite, score_name
from pytest_agentbench.tools.toolbox import Toolbox

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True)
class Setup:
    """What all rollouts of one suite and variant share."""

    agent: Agent
    scorers: Mapping[str, Scorer]
    sampling: Json  # sampling parameters of every request
    upgrade: bool | None  # whether calls that do not stream travel as streams; None: those of the built-in client do
    settings: Json  # the agent's settings as they are recorded
    judge: Json = field(default_factory=dict)  # the endpoint that scorers ask; empty: the backend under test
    unstructured: set[str] = field(default_factory=set)  # judges whose server has refused to answer by a schema


def prepare(suite: Suite, variant: str) -> Setup:
    """Resolves the names of a suite; raises ConfigError that names its suite.yaml."""
    settings = suite.agent_of(variant)
    with _names_its_file(suite):
        agent = make_agent(settings, suite.folder)
        scorers = {score_name(name): _scorer(name, suite.folder, options) for name, options in suite.scorers.items()}
    return Setup(agent, scorers, sampling_of(settings), settings.get(UPGRADE), all_options(settings, agent), suite.judge)


def _scorer(name: str, folder: Path, options: Json) -> Scorer:
    """A scorer; one that the suite brings may block, and holds up nobody."""
    scorer = load_scorer(name, folder, options)
    if is_import_path(name) and not is_async(scorer):
        return off_the_loop(scorer)  # type: ignore[return-value]  # a scorer may be a coroutine function
    return scorer


def preflight(suite: Suite, variants: Iterable[str]) -> None:
    """Checks the names of a suite before anything boots; code that the suite brings is only imported in the pool."""
    with _names_its_file(suite):
        for settings in map(suite.agent_of, variants):
            if not brings_code(settings, suite.folder):
                make_agent(settings, suite.folder)
    check_scores(suite)


@contextmanager
def _names_its_file(suite: Suite) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{suite.folder / SUITE_FILE}: {error}") from error


async def run_rollout(
    key: RolloutKey, scenario: Scenario, setup: Setup, tap: Tap, session: aiohttp.ClientSession | None, budget: float | None
) -> Rollout:
    """Runs the agent once on a scenario, for `budget` seconds at most, and scores what it did.

    Only a cancellation leaves this function as an exception.
    """
    lines = Lines(tap, key, session, setup.unstructured)
    llm = await lines.agent(Access(setup.upgrade, keep=is_black_box(setup.agent)), setup.sampling)
    tools = Toolbox(scenario.tools)
    started_at, started = time.time(), time.monotonic_ns()
    with capture() as log, underway(key, log) as mark:
        mark.begin(AGENT, budget)
        try:
            status, reason, answer = await outcome(setup.agent, scenario, llm, tools, budget)
            ended = time.monotonic_ns()
            try:
                calls = await lines.agent_is_done()
                time_up = None if budget is None else started + int(budget * 1e9)
                status, reason = judged(status, reason, calls, time_up)
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
                drafts=tuple(tools.drafts),
                programs=tuple(tools.programs),
                expected=scenario.expected,
                answer=answer,
                turns=len(calls),
                messages=tuple(llm.transcript),
                settings={**setup.settings, "model": llm.model},
            )
            rollout = await scored(rollout, scenario, setup.scorers, lambda: lines.judge(setup.judge), budget)
            with suppress(InfraError):  # the judgements are there
                rollout = dataclasses.replace(rollout, judge_calls=await lines.judges_are_done())
        finally:
            await lines.hang_up()
    return dataclasses.replace(rollout, log=log.text)


async def outcome(agent: Agent, scenario: Scenario, llm: LLM, tools: Toolbox, seconds: float | None) -> tuple[str, str, str]:
    """(status, reason, answer) of one run of the agent."""
    budget = asyncio.timeout(seconds)
    try:
        async with budget:
            answer = await work(agent, scenario, llm, tools)
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
