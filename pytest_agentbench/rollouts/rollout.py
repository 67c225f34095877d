"""Runs one rollout: the agent on a scenario, then the verifier if the scenario is a task, then the scorers."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import UPGRADE, all_options, code_place, is_black_box, make_agent, sampling_of
from pytest_agentbench.agents.run import work
from pytest_agentbench.errors import ConfigError, InfraError, RolloutError
from pytest_agentbench.lib.bounded import GRACE, run_bounded
from pytest_agentbench.lib.error_texts import with_place
from pytest_agentbench.lib.foreign import USUAL, Sizes, cut, size_of, too_large
from pytest_agentbench.lib.standard_streams import capture, print_exception
from pytest_agentbench.llm.access import ModelAddresses, Tap
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.metrics.blame import final_status
from pytest_agentbench.records import JUDGE, Access, Json, LLMCall, Rollout, RolloutKey, split_calls
from pytest_agentbench.rollouts.advice import ENCODED_TWICE, encoded_twice, error_text
from pytest_agentbench.rollouts.attempt_context import AGENT, VERIFIER, current_attempt
from pytest_agentbench.rollouts.checks import uncalled_tools
from pytest_agentbench.rollouts.scores import scored, scorer_of
from pytest_agentbench.rollouts.user_errors import AGENT as AGENT_ERROR
from pytest_agentbench.rollouts.user_errors import keep
from pytest_agentbench.sandbox.factory import SandboxFactory, UnlimitedSandboxes, code_place_for, sandbox_for
from pytest_agentbench.sandbox.sandbox import Sandbox
from pytest_agentbench.sandbox.verifier import verify
from pytest_agentbench.scorers import Scorer
from pytest_agentbench.suites.suite import SUITE_FILE, PoolSuite, Scenario, Task, score_name
from pytest_agentbench.tools import factory as tool_factory
from pytest_agentbench.tools.factory import CannedAnswer, answers_from, check_answers, with_canned_answers
from pytest_agentbench.tools.source import DecisionOnly, Tools
from pytest_agentbench.tools.toolbox import Toolbox

if TYPE_CHECKING:
    import aiohttp


async def verified(rollout: Rollout, task: Task | None, sandbox: Sandbox | None) -> Rollout:
    """Runs the task's verifier in the sandbox, and returns the rollout with its result. Does nothing if the agent failed.

    If the verification itself fails, the returned rollout has the status and the reason of that failure.
    """
    if task is None or sandbox is None or not rollout.evaluable:
        return rollout
    try:
        return dataclasses.replace(rollout, verification=await verify(sandbox, task))
    except RolloutError as error:
        return dataclasses.replace(rollout, status=error.status, reason=str(error))


def agent_time_limit(seconds: float | None, task: Task | None) -> float | None:
    """Returns the smaller one of the rollout's time limit (`seconds`) and the task's limit for agents, or None if there is none."""
    limits = [each for each in (seconds, task.agent_timeout_s if task else None) if each is not None]
    return min(limits, default=None)


@dataclass(frozen=True)
class RolloutSetup:
    """The agent, scorers, tools and settings that all rollouts of one suite and variant share. `prepare` makes it once."""

    agent: Agent
    scorers: Mapping[str, Scorer]
    sampling: Json  # sampling parameters of every request
    upgrade: bool | None  # whether calls without streaming are sent to the backend as streams; None: those of the built-in client are
    settings: Json  # settings of the agent, as recorded
    roles: Mapping[str, Json] = field(default_factory=dict)  # role -> its settings in the suite; scorers call the role `judge`
    limits: Json = field(default_factory=dict)  # limits of `calls`, `tokens` and `cost`, for the agent and its roles together
    tools: Tools = field(default_factory=DecisionOnly)  # executes the tool calls
    answers: Mapping[str, CannedAnswer] = field(default_factory=dict)  # tool -> canned answer, used instead of `tools`
    sizes: Sizes = USUAL  # size limits of texts
    unstructured: set[str] = field(default_factory=set)  # judges whose server has refused structured output


def prepare(suite: PoolSuite, variant: str, sizes: Sizes = USUAL) -> RolloutSetup:
    """Makes agent, scorers and tools of a suite and variant. Raises ConfigError if their settings or code are invalid."""
    settings = suite.agent_of(variant)
    with _names_its_file(suite):
        agent = make_agent(settings, suite.folder)
        scorers = {score_name(name): scorer_of(name, suite.folder, options) for name, options in suite.scorers.items()}
        tools = tool_factory.load_tools(suite.tools_of(variant), suite.folder, suite.scenarios)
        answers = answers_from(suite.answers_of(variant))
        if suite.scenarios:
            check_answers(answers, map(tools.for_scenario, suite.scenarios))
        for fault in uncalled_tools(suite, variant, agent):
            raise ConfigError(fault)
    shared = suite.roles, suite.limits, tools, answers
    return RolloutSetup(agent, scorers, sampling_of(settings), settings.get(UPGRADE), all_options(settings, agent), *shared, sizes=sizes)


@contextmanager
def _names_its_file(suite: PoolSuite) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{suite.folder / SUITE_FILE}: {error}") from error


NOT_FOUND = 404  # HTTP status for a model that the server does not know

AT_ONCE = UnlimitedSandboxes()


async def run_rollout(
    key: RolloutKey,
    scenario: Scenario,
    setup: RolloutSetup,
    tap: Tap,
    session: aiohttp.ClientSession | None,
    budget: float | None,
    opening: SandboxFactory = AT_ONCE,
    on_begin: Callable[[], object] = lambda: None,
) -> Rollout:
    """Makes one attempt of a rollout: runs the agent on a scenario, for at most `budget` seconds, verifies and scores. Returns the record.

    `opening` opens sandboxes. `on_begin` is called when the sandbox is open and the agent has not started yet.

    Raises:
        InfraError: The backend or the sandbox is not available.
    """
    scenario = setup.tools.for_scenario(scenario)
    lines = ModelAddresses(tap, key, session, setup.unstructured, setup.roles, setup.limits)
    async with (
        sandbox_for(key, scenario.task, budget, opening) as sandbox,
        code_place_for(key, code_place(setup.agent), budget, opening) as code,
        setup.tools.opened(scenario, budget) as source,
    ):
        tools = Toolbox(scenario.tools, sandbox, with_canned_answers(source, setup.answers, scenario, key.trial), code, setup.sizes)
        on_begin()
        return await _run(key, scenario, setup, lines, tools, budget)


async def _run(
    key: RolloutKey, scenario: Scenario, setup: RolloutSetup, lines: ModelAddresses, tools: Toolbox, budget: float | None
) -> Rollout:
    llm = await lines.agent(Access(setup.upgrade, keep=is_black_box(setup.agent)), setup.sampling)
    agents = agent_time_limit(budget, scenario.task)
    started_at, started = time.time(), time.monotonic_ns()
    with capture() as log, current_attempt(key, log) as mark:
        mark.begin(AGENT, agents)
        try:
            status, reason, answer = await outcome(setup.agent, scenario, llm, tools, agents, setup.sizes)
            ended = time.monotonic_ns()
            status, reason, calls = await _end_of_agent(
                status, reason, lines, None if agents is None else started + int(agents * 1e9), llm.model
            )
            measured, others = split_calls(calls)
            rollout = Rollout(
                *key,
                status=status,
                reason=reason,
                started_at=started_at,
                started_ns=started,
                ended_ns=ended,
                calls=measured,
                other_calls=others,
                tool_calls=tuple(tools.calls),
                drafts=tuple(tools.drafts),
                final_state=tools.final_state,
                programs=tuple(tools.programs),
                sandbox=tools.code.kind if tools.code and not tools.sandbox else "",
                expected=scenario.expected,
                reference=scenario.reference,
                answer=answer,
                turns=sum(not call.role for call in calls),
                messages=tuple(llm.transcript),
                settings={**setup.settings, "model": llm.model},
            )
            mark.begin(VERIFIER, None)
            rollout = await verified(rollout, scenario.task, tools.sandbox)
            rollout = await _scored_as_seen(rollout, scenario, setup, lines, budget)
            with suppress(InfraError):  # The scores are complete, so losing the judges' calls is acceptable.
                rollout = dataclasses.replace(rollout, other_calls=(*rollout.other_calls, *await lines.close_judges()))
        finally:
            await lines.close_all()
    return dataclasses.replace(rollout, log=log.text)


async def _scored_as_seen(
    rollout: Rollout, scenario: Scenario, setup: RolloutSetup, lines: ModelAddresses, budget: float | None
) -> Rollout:
    """Returns a rollout with its scores. Scorers read the conversation that the tap saw, if that is better than the agent's transcript.

    Then the rollout has no messages, because its record gets them from its calls.
    """
    own, seen = rollout.messages, await _seen_conversation(setup.agent, rollout, lines)
    read = dataclasses.replace(rollout, messages=seen or own)
    if name := encoded_twice(read.messages):
        logging.getLogger(__name__).warning(ENCODED_TWICE, name)
    read = await scored(read, scenario, setup.scorers, lambda: lines.role(JUDGE), budget, setup.sizes)
    return dataclasses.replace(read, messages=() if seen else own)


async def _seen_conversation(agent: Agent, rollout: Rollout, lines: ModelAddresses) -> tuple[Json, ...]:
    """Returns the agent's last conversation as the tap saw it, or nothing if the agent's own transcript is better.

    The transcript of a program lacks the results of its own tools, but has the model's answers in all conversations.
    """
    if rollout.messages and not is_black_box(agent):
        return ()
    seen = tuple(await lines.conversation(rollout.calls))
    answers, own = (sum(message.get("role") == "assistant" for message in messages) for messages in (seen, rollout.messages))
    return seen if answers >= own else ()


async def _end_of_agent(
    status: str, reason: str, lines: ModelAddresses, time_up: int | None, model: str
) -> tuple[str, str, Sequence[LLMCall]]:
    """Closes the addresses of an agent that has ended. Returns its final status and reason, and its calls.

    Failures that the tap has recorded take precedence over the agent's own `status` and `reason`. `time_up` is the time at which the
    agent has to end in nanoseconds, time.monotonic_ns(), or None if there is no limit. `model` is the agent's model.
    """
    try:
        calls = [_with_model_named(call, model) for call in await lines.close_agent()]
    except InfraError as error:
        return error.status, str(error), ()
    return *final_status(status, reason, calls, time_up), calls


def _with_model_named(call: LLMCall, model: str) -> LLMCall:
    """Returns a call of the agent. If the server does not know the model that the agent asked for, the error says which one to ask for."""
    if call.http_status != NOT_FOUND or not call.measured or call.role or call.model in ("", model):
        return call
    return dataclasses.replace(call, error=f"{call.error.rstrip('.')}; send `model=llm.model`, which is {model!r}")


async def outcome(
    agent: Agent, scenario: Scenario, llm: LLM, tools: Toolbox, seconds: float | None, sizes: Sizes = USUAL, *, grace: float = GRACE
) -> tuple[str, str, str]:
    """Runs an agent for at most `seconds`. Returns its status, reason and answer. Reason and answer are truncated to the limits in `sizes`.

    If the agent's tools have failed, status and reason are those of that failure. A cancelled agent has `grace` seconds to end. After
    that it is left running.
    """
    status, reason, answer = await _worked(agent, scenario, llm, tools, seconds, grace, sizes)
    try:
        tools.settle()
    except RolloutError as error:
        keep(AGENT_ERROR, error)
        status, reason, answer = error.status, str(error), error.answer
    return status, cut(reason, sizes.reason), cut(answer, sizes.answer)


async def _worked(
    agent: Agent, scenario: Scenario, llm: LLM, tools: Toolbox, seconds: float | None, grace: float, sizes: Sizes
) -> tuple[str, str, str]:
    end = await run_bounded(functools.partial(work, agent, scenario, llm, tools), seconds, grace=grace)
    if end.error is not None:
        keep(AGENT_ERROR, end.error)
    if end.took_too_long:
        return "limit", f"time: the rollout took longer than {seconds:g} s{end.left}", ""
    if not isinstance(end.error, InfraError) and (forgotten := tools.unawaited_call()):
        if end.error is not None:
            print_exception(end.error)
        return "agent_error", forgotten, ""
    if isinstance(end.error, RolloutError):
        return end.error.status, str(end.error), end.error.answer
    if end.error is not None:  # Any other exception is an error of the agent.
        return _agents_fault(end.error, sizes)
    answer = end.result().text
    if (size := size_of(answer)) > sizes.answer:
        return "limit", too_large("answer", size, sizes.answer, "answer"), answer
    return "ok", "", answer


def _agents_fault(error: BaseException, sizes: Sizes) -> tuple[str, str, str]:
    print_exception(error)  # This goes to the rollout's log.
    text = error_text(error, sizes.reason)
    if (placed := with_place(text, error)) != text:
        return "agent_error", placed, ""
    frame = traceback.extract_tb(error.__traceback__)[-1]  # Only code of packages is in the stack.
    return "agent_error", f"{text} ({Path(frame.filename).name}:{frame.lineno})", ""
