"""Makes agents and sampling parameters from the settings under `agent` in suite.yaml. An agent may be a user's class or function."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_agentbench.agents import AGENTS, Agent, load_agent
from pytest_agentbench.errors import AgentError, ConfigError, unknown_key
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.error_texts import place_of
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
    """Returns the sampling parameters among an agent's settings. Raises ConfigError for one of the wrong type or out of range."""
    parameters = {name: settings[name] for name in SAMPLING if name in settings}
    for name, value in parameters.items():
        if not PARAMETERS[name].allows(value):
            raise ConfigError(f"agent: {name} must be {PARAMETERS[name].words}, not {value!r}")
    return parameters


#: Parameters that an agent function may have.
FUNCTION_PARAMETERS = ("scenario", "tools", "llm", "client")


@dataclass(frozen=True)
class FunctionAgent:
    """The agent that wraps a user's function, which may be async or blocking, and passes it the values of its options."""

    function: Callable[..., object]
    parameters: tuple[str, ...]  # names from FUNCTION_PARAMETERS
    options: Json = field(default_factory=dict)  # values of all options, defaults included

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
        answer: Any = await (call() if is_async(self.function) else in_thread(call))  # type: ignore[misc]  # awaitable if async
        if answer is None or isinstance(answer, str):
            return Answer(answer or "")
        if isinstance(answer, Answer):
            return answer
        what = f"{beginning(str(answer), 80)!r} ({type(answer).__name__}), not an Answer, a text or None"
        raise AgentError(f"the agent returned {what}{place_of(self.function)}")


def function_agent(kind: str, function: Callable[..., object], options: Json) -> FunctionAgent:
    """Returns the agent for a user's function. Raises ConfigError if it has an unknown parameter, or if an option is missing."""
    with_options("agent", kind, function, options)
    defaults = {name: value for name, value in options_of(function).items() if value is not inspect.Parameter.empty}
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    for each in parameters:
        if each.name not in FUNCTION_PARAMETERS or each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            known = f"known: {', '.join(FUNCTION_PARAMETERS)}; write options of the agent after a `*`, so that they are keyword-only"
            raise ConfigError(f"agent: {kind!r} has an unknown parameter: {each}; {known}{place_of(function)}")
    return FunctionAgent(function, tuple(each.name for each in parameters), {**defaults, **options})


#: Parameters of an agent's method `run`.
RUN_PARAMETERS = ("scenario", "llm", "tools")

#: Setting of every agent: whether the tap sends its non-streaming calls as streams, so that they have a TTFT.
UPGRADE = "stream_upgrade"

#: Metadata of an option that contains the settings of another agent: `field(metadata=AN_AGENT)`.
AN_AGENT: Mapping[str, bool] = {"agent": True}

#: Metadata of an option that is a text for a model: `field(default=TEXT, metadata=A_PROMPT)`.
A_PROMPT: Mapping[str, bool] = {"prompt": True}

#: Metadata of an option that is a path relative to the suite's folder: `field(default=".", metadata=A_PATH)`. The agent gets both joined.
A_PATH: Mapping[str, bool] = {"path": True}


def make_agent(settings: Json, folder: Path) -> Agent:
    """Makes the agent that the settings describe. Raises ConfigError for invalid settings."""
    kind = settings.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"agent: the key 'kind' is missing; known: {', '.join(AGENTS)}, or an import path")
    agent_type = load_agent(kind, folder)
    options = _options(agent_type)
    known = ("kind", *SAMPLING, UPGRADE, *options)
    _check_parameters(kind, agent_type, settings, known)
    for name in settings:
        if name not in known:
            raise ConfigError(f"agent: {unknown_key(name, known, kind)}")
    sampling_of(settings)
    if not isinstance(settings.get(UPGRADE), bool | None):
        raise ConfigError(f"agent: {UPGRADE} must be true or false, not {settings[UPGRADE]!r}")
    chosen = {name: _inner_agent(name, value, folder) if options[name].get("agent") else value
             for name, value in settings.items() if name in options}  # fmt: skip
    chosen |= {name: str(folder / str(chosen.get(name, ""))) for name, metadata in options.items() if metadata.get("path")}
    try:
        agent: Agent = function_agent(kind, agent_type, chosen) if _is_function(agent_type) else agent_type(**chosen)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # A user's class may raise anything, for example because an option is missing.
        missing = next((name for name, each in _init_parameters(agent_type).items() if each.default is each.empty), "")
        advice = f"; {_declaration(agent_type, missing)}{place_of(agent_type.__init__)}" if missing and not options else ""
        raise ConfigError(f"agent: {kind!r} cannot be made from its settings: {' '.join(str(error).split())}{advice}") from error
    if not callable(getattr(agent, "run", None)):
        raise ConfigError(f"agent: {kind!r} needs a method `run(self, scenario, llm, tools)`; it is of type {type(agent).__name__}")
    check_takes(f"agent: {kind!r}: its method `run`", agent.run, RUN_PARAMETERS)
    return agent


def _check_parameters(kind: str, agent_type: Any, settings: Json, known: Iterable[str]) -> None:
    """Raises ConfigError if a setting has the name of a parameter of a class's `__init__` that never gets a value of suite.yaml.

    Only the fields of a dataclass are options. A sampling parameter in `__init__` would keep its default, and the record of the run would
    have the value of suite.yaml.
    """
    if not inspect.isclass(agent_type) or dataclasses.is_dataclass(agent_type):
        return
    for name in (each for each in settings if each in _init_parameters(agent_type)):
        declared = f"{_declaration(agent_type, name)}{place_of(agent_type.__init__)}"
        if name not in known:
            raise ConfigError(f"agent: {kind!r} does not declare the option {name!r}; {declared}")
        if name in SAMPLING:
            never = f"{kind!r} never gets {name!r} of suite.yaml, because its __init__ is not read"
            raise ConfigError(f"agent: {never}; leave the parameter out and send `**llm.sampling` with each request, or {declared}")


def _declaration(agent_type: type, name: str) -> str:
    """Returns how to declare a parameter of a class's `__init__` as an option."""
    line = _as_field(_init_parameters(agent_type)[name])
    return f"declare it as a field of a dataclass: `@dataclass` above `class {agent_type.__name__}`, and `{line}` instead of the __init__"


def _init_parameters(cls: Any) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a class's own `__init__` that can be named in a call, or an empty mapping."""
    if not inspect.isclass(cls) or cls.__init__ is object.__init__:
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in inspect.signature(cls).parameters.items() if each.kind in named}


def _as_field(parameter: inspect.Parameter) -> str:
    """Returns the line of a dataclass that declares the same option as a parameter: `max_turns: int = 6`."""
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
    kind = type(parameter.default).__name__ if default and parameter.default is not None else "str"
    annotation = kind if parameter.annotation is inspect.Parameter.empty else inspect.formatannotation(parameter.annotation).strip("'")
    return f"{parameter.name}: {annotation}{default}"


def paths_of(settings: Any, folder: Path) -> Iterator[str]:
    """Yields the paths relative to the suite's folder that a built-in agent, and those that it wraps, have as options.

    `settings` is the agent's kind or its settings.
    """
    settings = {"kind": settings} if isinstance(settings, str) else settings
    kind = settings.get("kind") if isinstance(settings, dict) else None
    if not isinstance(kind, str) or is_import_path(kind):
        return
    for name, metadata in _options(load_agent(kind, folder)).items():
        if metadata.get("path") and name in settings:
            yield str(settings[name])
        elif metadata.get("agent") and name in settings:
            yield from paths_of(settings[name], folder)


def _is_function(agent_type: object) -> bool:
    return callable(agent_type) and not inspect.isclass(agent_type)


def _options(agent_type: Any) -> dict[str, Mapping[str, bool]]:
    """Returns the options of an agent's class or function: name -> metadata of the dataclass field, which marks agents and prompts.

    Options of functions have no metadata. The result is empty if `agent_type` is neither a dataclass nor a function.
    """
    if dataclasses.is_dataclass(agent_type):
        return {each.name: each.metadata for each in dataclasses.fields(agent_type)}
    return {name: {} for name in options_of(agent_type)} if _is_function(agent_type) else {}


def _inner_agent(name: str, settings: Any, folder: Path) -> Agent:
    """Makes the agent that another agent wraps, from the value of the option `name`: the inner agent's kind or its settings."""
    settings = {"kind": settings} if isinstance(settings, str) else settings
    if not isinstance(settings, dict):
        raise ConfigError(f"agent: {name} must be an agent's kind such as react, or settings such as {{kind: react}}, not {settings!r}")
    if misplaced := [key for key in settings if key in (*SAMPLING, UPGRADE)]:
        raise ConfigError(f"agent: {name}: {misplaced[0]!r} applies to all requests of the rollout; write it beside {name!r}, not in it")
    try:
        return make_agent(settings, folder)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def brings_code(settings: Any, folder: Path) -> bool:
    """Returns whether an agent, or one that it wraps, is the suite's own code. Does not import the code.

    `settings` is the agent's kind or its settings. Raises ConfigError for an unknown built-in agent.
    """
    settings = {"kind": settings} if isinstance(settings, str) else settings
    kind = settings.get("kind") if isinstance(settings, dict) else None
    if not isinstance(kind, str):
        return False  # `make_agent` reports the error.
    if is_import_path(kind):
        return True
    inner = [name for name, metadata in _options(load_agent(kind, folder)).items() if metadata.get("agent")]
    return any(brings_code(settings[name], folder) for name in inner if name in settings)


def prompts_of(agent: Agent) -> dict[str, str]:
    """Returns the prompts of this agent and of those that it wraps: option -> text.

    The name of a wrapped agent's option follows the option that names that agent, for example `wraps.system_prompt`.
    """
    prompts: dict[str, str] = {}
    for name, metadata in _options(type(agent)).items():
        if metadata.get("prompt"):
            prompts[name] = getattr(agent, name)
        elif metadata.get("agent"):
            prompts |= {f"{name}.{inner}": text for inner, text in prompts_of(getattr(agent, name)).items()}
    return prompts


def is_black_box(agent: Agent) -> bool:
    """Returns whether this agent, or one that it wraps, calls the model itself, so that only the tap sees its calls."""
    return bool(getattr(agent, "black_box", False)) or any(map(is_black_box, _wrapped(agent)))


def needs_task(agent: Agent) -> bool:
    """Returns whether this agent, or one that it wraps, works in the sandbox of a task."""
    return bool(getattr(agent, "needs_task", False)) or any(map(needs_task, _wrapped(agent)))


def needs_roles(agent: Agent) -> frozenset[str]:
    """Returns the roles that this agent, or one that it wraps, may use in a rollout."""
    return frozenset(getattr(agent, "needs_roles", ())).union(*map(needs_roles, _wrapped(agent)))


def needs_context(agent: Agent) -> int:
    """Returns the largest prompt in tokens for which this agent, or one that it wraps, is configured, or 0 if none has a budget."""
    return max([int(getattr(agent, "needs_context", 0)), *map(needs_context, _wrapped(agent))])


def too_long(tokens: int, context_length: int | None) -> str:
    """Returns an error message if prompts of `tokens` tokens exceed the model's context, else an empty text."""
    if context_length is None or tokens < context_length:
        return ""
    return (
        f"context_tokens is {tokens}, and the model accepts {context_length} tokens of prompt and answer together; "
        "reduce `context_tokens` of the agent, or use a model with a longer context"
    )


def retriever_of(agent: Agent) -> str | None:
    """Returns the base URL of the retriever of this agent, or of one that it wraps. Empty if not set, None if no agent can search."""
    own: str | None = getattr(agent, "retriever", None)
    return own if own is not None else next((url for url in map(retriever_of, _wrapped(agent)) if url is not None), None)


def code_place(agent: Agent) -> CodePlace | None:
    """Returns kind and size of the sandbox that this agent, or one that it wraps, needs in each rollout for programs that a model writes.

    None if the agent runs no programs, or runs them in the sandbox that a task (a scenario with a sandbox of its own) has anyway.
    """
    own: CodePlace | None = getattr(agent, "code_place", None)
    return own or next(filter(None, map(code_place, _wrapped(agent))), None)


def container_for_code(agents: Iterable[Agent]) -> Task | None:
    """Returns the description of the first container in which an agent runs programs, or None if none of these agents needs one."""
    return next((place.container for place in map(code_place, agents) if place and place.image), None)


def _wrapped(agent: Agent) -> list[Agent]:
    return [getattr(agent, name) for name, metadata in _options(type(agent)).items() if metadata.get("agent")]


def all_options(settings: Json, agent: Agent) -> Json:
    """Returns the settings with the agent's defaults filled in, for the record of the run."""
    if isinstance(agent, FunctionAgent):
        return {**agent.options, **settings}
    defaults: Json = dataclasses.asdict(agent) if dataclasses.is_dataclass(agent) and not isinstance(agent, type) else {}
    return {**defaults, **settings}
