"""Tools that are methods of a class in the suite. Each rollout has its own instance of the class, and thus its own state."""

from __future__ import annotations

import asyncio
import copy
import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import orjson

from pytest_agentbench.errors import ConfigError, InfraError, NoTerminal, ToolError
from pytest_agentbench.lib.bounded import run_bounded
from pytest_agentbench.lib.foreign import cut
from pytest_agentbench.lib.standard_streams import LOG_LIMIT, print_exception
from pytest_agentbench.lib.threads import in_thread, is_async
from pytest_agentbench.lib.user_code import is_import_path, load_object
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.signatures import Method, check_agreement, methods_of
from pytest_agentbench.tools.source import ToolSource

#: Names of the parameters that the constructor of the class may have.
GIVEN = ("scenario", "state")


@dataclass(frozen=True)
class PythonTools:
    """The `tools` of suite.yaml with `kind: python`: the public methods of a class in the suite. See docs/agents/tools.md for the keys."""

    module: str  # The import path of a class, such as `./tools.py:Shop`, whose methods are the tools.

    own_code: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.module, str) or not is_import_path(self.module):
            raise ValueError(f"module must be the import path of a class, such as ./tools.py:Bank, not {self.module!r}")

    def load(self, folder: Path, scenarios: Sequence[Scenario]) -> ClassTools:
        cls = load_object("class of tools", self.module, {}, folder)
        if not inspect.isclass(cls):
            raise ConfigError(f"{self.module!r} is a {type(cls).__name__}, and must be a class whose methods are tools")
        try:
            tools = ClassTools(cls, methods_of(cls), _constructor_parameters(cls))
            tools.check(scenarios)
        except ConfigError as error:
            raise ConfigError(f"{self.module!r}: {error}") from error
        return tools


def _constructor_parameters(cls: type) -> tuple[str, ...]:
    """Returns which of the parameters `scenario` and `state` the constructor of a class has.

    Raises ConfigError if the constructor has another parameter without a default.
    """
    parameters = inspect.signature(cls).parameters.values()
    for each in parameters:
        if each.name not in GIVEN and each.default is inspect.Parameter.empty:
            raise ConfigError(f"the constructor of {cls.__name__} has an unknown parameter: {each}; known: {', '.join(GIVEN)}")
    return tuple(each.name for each in parameters if each.name in GIVEN)


@dataclass(frozen=True)
class ClassTools:
    """A class of the suite whose methods are tools. `opened` creates an instance of it for one rollout."""

    cls: type
    methods: Mapping[str, Method]
    constructor_parameters: tuple[str, ...]  # subset of GIVEN

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Raises ConfigError if the scenarios' tools differ from those of the class, or if they expect a tool that does not exist."""
        own = {name: (tuple(sorted(each.required)), tuple(sorted(each.optional))) for name, each in self.methods.items()}
        check_agreement(own, scenarios)

    def for_scenario(self, scenario: Scenario) -> Scenario:
        return scenario if scenario.tools else replace(scenario, tools=tuple(each.tool for each in self.methods.values()))

    @asynccontextmanager
    async def opened(self, scenario: Scenario, seconds: float | None = None) -> AsyncIterator[ToolInstance]:
        given = {"scenario": scenario, "state": copy.deepcopy(scenario.state)}
        end = await run_bounded(partial(in_thread, self.cls, **{name: given[name] for name in self.constructor_parameters}), seconds)
        if end.took_too_long:
            raise InfraError(f"tools: {self.cls.__name__} cannot be created: its constructor took longer than {seconds:g} s{end.left}")
        if end.error is not None:
            raise _broken(f"{self.cls.__name__} cannot be created", end.error) from end.error
        yield ToolInstance(end.result(), self.methods)


class ToolInstance:
    """The tool source of one rollout: an instance of the suite's class, whose methods execute the calls.

    Methods that are not async run in a thread, one at a time, because they share the state.
    """

    def __init__(self, instance: Any, methods: Mapping[str, Method]) -> None:
        self._instance, self._methods = instance, methods
        self._lock = asyncio.Lock()

    async def call(self, tool: Tool, arguments: Json) -> str:
        given = self._methods[tool.name].arguments(arguments)
        try:
            return _result_text(tool, await self._result(getattr(self._instance, tool.name), given))
        except (ToolError, NoTerminal, asyncio.CancelledError):
            raise
        except BaseException as error:  # The error comes from the suite's code.
            raise _broken(f"the tool {tool.name!r}", error) from error

    async def _result(self, method: Callable[..., Any], arguments: Json) -> Any:
        if is_async(method):
            return await method(**arguments)
        async with self._lock:
            return await in_thread(method, **arguments)

    def state(self) -> Json | None:
        try:
            state = getattr(self._instance, "state", None)
            plain = orjson.loads(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS))
        except (Exception, SystemExit) as error:
            raise _broken(f"the state of {type(self._instance).__name__} cannot be converted to JSON", error) from error
        if not isinstance(plain, dict | None):
            raise InfraError(f"tools: the state of {type(self._instance).__name__} must be a mapping, and is a {type(state).__name__}")
        return plain

    def copy(self) -> ToolSource:
        try:
            return ToolInstance(copy.deepcopy(self._instance), self._methods)
        except (Exception, SystemExit) as error:
            name = type(self._instance).__name__
            raise _broken(f"{name} cannot be copied for the next draft of an agent that answers several times", error) from error


def _result_text(tool: Tool, result: Any) -> str:
    """Converts the return value of a tool to text for the model."""
    if result is None:
        return f"{tool.name} is done."
    return result if isinstance(result, str) else orjson.dumps(result, option=orjson.OPT_NON_STR_KEYS).decode()


def _broken(what: str, error: BaseException) -> InfraError:
    """Returns an InfraError for an exception in the suite's code, with file and line. Prints the traceback to the rollout's log."""
    print_exception(error)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename != __file__]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return InfraError(f"tools: {what}: {type(error).__name__}: {' '.join(cut(str(error), LOG_LIMIT).split())}{place}")
