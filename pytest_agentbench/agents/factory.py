"""From the settings in a suite.yaml to an agent, which may be a function of the user's, and to its sampling parameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_agentbench.agents import AGENTS, Agent, load_agent
from pytest_agentbench.errors import AgentError, ConfigError, unknown_key
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.options import MOST, ValueKind, number, whole
from pytest_agentbench.lib.threads import in_thread, is_async
from pytest_agentbench.lib.user_code import check_takes, is_import_path, options_of, with_options
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import SAMPLING, Answer, Json
from pytest_agentbench.sandbox.sandbox import CodePlace
from pytest_agentbench.suites.suite import Scenario, Task
from pytest_agentbench.tools.toolbox import BlockingToolbox, Toolbox

PARAMETERS: Mapping[str, ValueKind] = {
    "temperature": number(0),
    "top_p": number(0, 1),
    "max_tokens": whole(1),
    "seed": whole(-MOST - 1)._replace(words="a whole number"),
    "model": ValueKind(lambda value: isinstance(value, str) and value != "", "the name of a model"),
}


def sampling_of(settings: Json) -> Json:
    """The sampling parameters among an agent's settings; raises ConfigError for one of the wrong type or out of range."""
    parameters = {name: settings[name] for name in SAMPLING if name in settings}
    for name, value in parameters.items():
        if not PARAMETERS[name].allows(value):
            raise ConfigError(f"agent: {name} should be {PARAMETERS[name].words}, not {value!r}")
    return parameters


#: What a function may ask for, by the names of its parameters.
GIVEN = ("scenario", "tools", "llm", "client")


@dataclass(frozen=True)
class FunctionAgent:
    """A function, async or blocking, with its options given."""

    function: Callable[..., object]
    parameters: tuple[str, ...]  # among GIVEN
    options: Json = field(default_factory=dict)  # defaults included

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        arguments = {"scenario": scenario, "tools": tools if is_async(self.function) else BlockingToolbox(tools), "llm": llm}
        if "client" not in self.parameters:
            return await self._answer(arguments)
        if is_async(self.function):
            async with llm.openai() as client:
                return await self._answer({**arguments, "client": client})
        with llm.openai_sync() as blocking_client:
            return await self._answer({**arguments, "client": blocking_client})

    async def _answer(self, arguments: Mapping[str, object]) -> Answer:
        call = functools.partial(self.function, **{name: arguments[name] for name in self.parameters}, **self.options)
        answer: Any = await (call() if is_async(self.function) else in_thread(call))  # type: ignore[misc]  # an async one's is awaitable
        if answer is None or isinstance(answer, str):
            return Answer(answer or "")
        if isinstance(answer, Answer):
            return answer
        raise AgentError(f"the agent returned {beginning(str(answer), 80)!r} ({type(answer).__name__}), not an Answer, a text or None")


def function_agent(kind: str, function: Callable[..., object], options: Json) -> FunctionAgent:
    """The agent that a function is; raises ConfigError for a parameter that nobody knows, and for an option that is missing."""
    with_options("agent", kind, function, options)
    defaults = {name: value for name, value in options_of(function).items() if value is not inspect.Parameter.empty}
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    for each in parameters:
        if each.name not in GIVEN or each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            known = f"known: {', '.join(GIVEN)}; its options are keyword-only, behind a `*`"
            raise ConfigError(f"agent: {kind!r} has a parameter that nobody fills: {each}; {known}")
    return FunctionAgent(function, tuple(each.name for each in parameters), {**defaults, **options})


#: What the method `run` of an agent takes.
TAKEN = ("scenario", "llm", "tools")

#: Setting of every agent: whether its calls that do not stream travel as streams, so that they have a TTFT.
UPGRADE = "stream_upgrade"

#: Metadata of an option that holds the settings of another agent, which is made from them: `field(metadata=AN_AGENT)`.
AN_AGENT: Mapping[str, bool] = {"agent": True}

#: Metadata of an option that is a text for a model: `field(default=TEXT, metadata=A_PROMPT)`.
A_PROMPT: Mapping[str, bool] = {"prompt": True}

#: Metadata of an option that is a path below the suite's folder, which is put before it: `field(default=".", metadata=A_PATH)`.
A_PATH: Mapping[str, bool] = {"path": True}


def make_agent(settings: Json, folder: Path) -> Agent:
    """The agent that settings describe; raises ConfigError that says what is wrong with them."""
    kind = settings.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"agent: the key 'kind' is missing; known: {', '.join(AGENTS)}, or an import path")
    made_by = load_agent(kind, folder)
    options = _options(made_by)
    known = ("kind", *SAMPLING, UPGRADE, *options)
    for name in settings:
        if name not in known:
            raise ConfigError(f"agent: {unknown_key(name, known, kind)}")
    sampling_of(settings)
    if not isinstance(settings.get(UPGRADE), bool | None):
        raise ConfigError(f"agent: {UPGRADE} should be true or false, not {settings[UPGRADE]!r}")
    chosen = {name: _inner(name, value, folder) if options[name].get("agent") else value
             for name, value in settings.items() if name in options}  # fmt: skip
    chosen |= {name: str(folder / str(chosen.get(name, ""))) for name, about in options.items() if about.get("path")}
    try:
        agent: Agent = function_agent(kind, made_by, chosen) if _is_function(made_by) else made_by(**chosen)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the class may be the user's: an option without a default, a check of its own, no class
        raise ConfigError(f"agent: {kind!r} cannot be made from its settings: {' '.join(str(error).split())}") from error
    if not callable(getattr(agent, "run", None)):
        raise ConfigError(f"agent: {kind!r} has no method `run(self, scenario, llm, tools)`; it is {type(agent).__name__}")
    check_takes(f"agent: {kind!r}: its method `run`", agent.run, TAKEN)
    return agent


def _is_function(made_by: object) -> bool:
    return callable(made_by) and not inspect.isclass(made_by)


def _options(made_by: Any) -> dict[str, Mapping[str, bool]]:
    """Option -> what is said of it, of an agent's class or function."""
    if dataclasses.is_dataclass(made_by):
        return {each.name: each.metadata for each in dataclasses.fields(made_by)}
    return {name: {} for name in options_of(made_by)} if _is_function(made_by) else {}


def _inner(name: str, settings: Any, folder: Path) -> Agent:
    """The agent that another one has as an option, from its kind or from its settings."""
    settings = {"kind": settings} if isinstance(settings, str) else settings
    if not isinstance(settings, dict):
        raise ConfigError(f"agent: {name} should be an agent's kind or settings, not {settings!r}")
    if lost := [key for key in settings if key in (*SAMPLING, UPGRADE)]:
        raise ConfigError(f"agent: {name}: {lost[0]!r} is of all requests of the rollout; put it beside {name!r}")
    try:
        return make_agent(settings, folder)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def brings_code(settings: Any, folder: Path) -> bool:
    """Whether an agent, or one that it has as an option, is the suite's own code, by its kind or its settings.

    Nothing of it is imported. Raises ConfigError for a built-in agent that does not exist.
    """
    settings = {"kind": settings} if isinstance(settings, str) else settings
    kind = settings.get("kind") if isinstance(settings, dict) else None
    if not isinstance(kind, str):
        return False  # `make_agent` says what is wrong
    if is_import_path(kind):
        return True
    inner = [name for name, about in _options(load_agent(kind, folder)).items() if about.get("agent")]
    return any(brings_code(settings[name], folder) for name in inner if name in settings)


def prompts_of(agent: Agent) -> dict[str, str]:
    """Option -> what this agent, and those that it has as options, tell a model besides the scenario."""
    prompts: dict[str, str] = {}
    for name, about in _options(type(agent)).items():
        if about.get("prompt"):
            prompts[name] = getattr(agent, name)
        elif about.get("agent"):
            prompts |= {f"{name}.{inner}": text for inner, text in prompts_of(getattr(agent, name)).items()}
    return prompts


def is_black_box(agent: Agent) -> bool:
    """Whether this agent, or one that it wraps, is seen by the tap only."""
    return bool(getattr(agent, "black_box", False)) or any(map(is_black_box, _wrapped(agent)))


def needs_task(agent: Agent) -> bool:
    """Whether this agent, or one that it wraps, works in a sandbox."""
    return bool(getattr(agent, "needs_task", False)) or any(map(needs_task, _wrapped(agent)))


def needs_roles(agent: Agent) -> frozenset[str]:
    """The roles that this agent, or one that it wraps, asks in any rollout."""
    return frozenset(getattr(agent, "needs_roles", ())).union(*map(needs_roles, _wrapped(agent)))


def needs_context(agent: Agent) -> int:
    """Returns the budget of tokens for the prompts of this agent, or of one that it wraps. An agent without a budget has 0."""
    return max([int(getattr(agent, "needs_context", 0)), *map(needs_context, _wrapped(agent))])


def too_long(tokens: int, context_length: int | None) -> str:
    """Returns a sentence if prompts of so many tokens can never fit into the model, else an empty text."""
    if context_length is None or tokens < context_length:
        return ""
    return (
        f"context_tokens is {tokens}, and the model accepts {context_length} tokens of prompt and answer together; "
        "reduce `context_tokens` of the agent, or use a model with a longer context"
    )


def retriever_of(agent: Agent) -> str | None:
    """Returns the retriever's base URL of this agent or of one that it wraps: empty without one, None for an agent that cannot search."""
    own: str | None = getattr(agent, "retriever", None)
    return own if own is not None else next((url for url in map(retriever_of, _wrapped(agent)) if url is not None), None)


def code_place(agent: Agent) -> CodePlace | None:
    """Where this agent, or one that it wraps, runs programs for scenarios that are no tasks; None where it runs none."""
    own: CodePlace | None = getattr(agent, "code_place", None)
    return own or next(filter(None, map(code_place, _wrapped(agent))), None)


def container_for_code(agents: Iterable[Agent]) -> Task | None:
    """Returns what the container is made from in which the programs of one of these agents run; None if none of them needs one."""
    return next((place.container for place in map(code_place, agents) if place and place.image), None)


def _wrapped(agent: Agent) -> list[Agent]:
    return [getattr(agent, name) for name, about in _options(type(agent)).items() if about.get("agent")]


def all_options(settings: Json, agent: Agent) -> Json:
    """The settings with the agent's defaults filled in, so that a run records what it ran with."""
    if isinstance(agent, FunctionAgent):
        return {**agent.options, **settings}
    defaults: Json = dataclasses.asdict(agent) if dataclasses.is_dataclass(agent) and not isinstance(agent, type) else {}
    return {**defaults, **settings}
