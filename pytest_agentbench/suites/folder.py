"""Reads the folder of a suite: suite.yaml and the data become a Suite. An error is a ConfigError with one sentence.

Also reads the two config files with which OpenThoughts' tasks are run in Harbor, a harness for terminal tasks: agent_config.json (an agent)
and config.yaml (a model and its vLLM server). They become settings of the agent `terminal`. `with_modes` adds the comparison modes of
arguments to labels (expected calls).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.errors import ConfigError, suggestion, unknown_key, unknown_name
from pytest_agentbench.lib.config import load_yaml, override, validate
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.records import SAMPLING, Json
from pytest_agentbench.suites.datasets import read_dataset
from pytest_agentbench.suites.roles import roles_as_json, with_role_file
from pytest_agentbench.suites.spec import Answers, SuiteSpec
from pytest_agentbench.suites.suite import SUITE_FILE, Quarantined, Scenario, Suite, in_place_of, toolsets

KIND, KEY = "terminal", "config"

#: Keys of an agent_config.json besides sampling parameters.
OPTIONS = ("system_prompt", "max_iterations")

#: Keys of an agent_config.json that have no effect: agents have no names here, and Chat Completions is the only API.
WITHOUT_USE = ("agent_name", "name", "api_type")

API_BASE = "api_base"  # the URL of the server in an agent_config.json

#: Paths in a config.yaml of the model, and of the server's default sampling parameters.
MODEL, INFERENCE = "model_information.model_config", "model_information.inference_parameters"

#: Keys of the model in a config.yaml. A local model is named by its folder, any other by its id on the hub.
IS_LOCAL, LOCAL_NAME, HUB_NAME = "is_model_local", "model_path", "model_id"

Notify = Callable[[str], None]


class AgentConfig(NamedTuple):
    """The content of an agent_config.json (settings of an agent) or of a config.yaml (settings of a model and its server)."""

    file: Path
    settings: Json  # options and sampling parameters of the agent
    api_base: str  # URL of the model's server, or empty
    unused_keys: tuple[str, ...]  # all other keys

    @property
    def note(self) -> str:
        """A sentence that names the keys that are not used. Empty if there are none."""
        return f"{self.file}: not used: {', '.join(self.unused_keys)}" if self.unused_keys else ""


def read_agent_config(file: Path) -> AgentConfig:
    """Reads an agent_config.json or a config.yaml. Raises ConfigError with the file and the key of an error."""
    return _read_yaml_config(file) if file.suffix in {".yaml", ".yml"} else _read_json_config(file)


def _read_json_config(file: Path) -> AgentConfig:
    data = read_json_file(file)
    if not isinstance(data, dict):
        raise ConfigError(f'{file}: is a JSON {type(data).__name__}, must be an object such as {{"temperature": 0.6}}')
    known = (*SAMPLING, *OPTIONS, API_BASE, *WITHOUT_USE)
    for name in data:
        if name not in known:
            raise ConfigError(f"{file}: {unknown_key(name, known)}")
    settings = {name: data[name] for name in data if name in (*SAMPLING, *OPTIONS)}
    return AgentConfig(file, settings, str(data.get(API_BASE, "")), tuple(name for name in data if name in WITHOUT_USE))


def _read_yaml_config(file: Path) -> AgentConfig:
    """Reads a config.yaml. Unknown keys are not errors, because they are options of vLLM, whose names change."""
    data = load_yaml(file)
    model = _mapping_at(data, MODEL, file)
    parameters = _mapping_at(data, INFERENCE, file)
    name = LOCAL_NAME if model.get(IS_LOCAL) else HUB_NAME
    settings = {key: value for key, value in parameters.items() if key in SAMPLING}
    if model.get(name):
        settings["model"] = model[name]
    if not settings:
        raise ConfigError(f"{file}: has neither {MODEL}.{HUB_NAME} nor sampling parameters in {INFERENCE}; add one of the two")
    used = {f"{MODEL}.{name}", f"{MODEL}.{IS_LOCAL}", *(f"{INFERENCE}.{key}" for key in SAMPLING)}
    return AgentConfig(file, settings, "", tuple(_unused(data, used)))


def _mapping_at(data: Json, path: str, file: Path) -> Json:
    """Returns the mapping at a dotted path, or an empty one."""
    value: Any = data
    for key in path.split("."):
        value = value.get(key) or {}
        if not isinstance(value, dict):
            raise ConfigError(f"{file}: {path} must be a mapping, such as `key: value`")
    return dict(value)


def _unused(data: Mapping[str, Any], used: set[str], above: str = "") -> Iterator[str]:
    """Yields the dotted paths of the keys in a config file that are not in `used`. A mapping without any used key is one path."""
    for key, value in data.items():
        path = f"{above}{key}"
        if any(each.startswith(f"{path}.") for each in used) and isinstance(value, dict):
            yield from _unused(value, used, f"{path}.")
        elif path not in used:
            yield path


def with_config(agent: Json, folder: Path, notify: Notify) -> Json:
    """Returns the agent's settings, with the settings of the file at `config` added. Settings in suite.yaml override those of the file.

    Calls `notify` with a sentence about keys of the file that are not used.
    """
    if agent.get("kind") != KIND or KEY not in agent:
        return agent
    own = {name: value for name, value in agent.items() if name != KEY}
    return {**_settings(folder, str(agent[KEY]), notify), **own}


def with_typed_config(changes: Sequence[tuple[str, Any]], agent: Any, folder: Path, notify: Notify) -> Iterator[tuple[str, Any]]:
    """Yields the (path, value) changes that the command line makes to a suite, with `agent.config=FILE` replaced by the file's settings.

    So a file that is named on the command line overrides the settings in suite.yaml.
    """
    for path, value in changes:
        if path == f"agent.{KEY}" and isinstance(agent, dict) and agent.get("kind") == KIND:
            yield from ((f"agent.{name}", each) for name, each in _settings(folder, str(value), notify).items())
        else:
            yield path, value


def _settings(folder: Path, name: str, notify: Notify) -> Json:
    """Returns the settings in a config file, which is beside suite.yaml or, failing that, in the working directory."""
    file = folder / name
    config = read_agent_config(file if file.exists() or not Path(name).exists() else Path(name))
    unused_keys = (*config.unused_keys, *([API_BASE] if config.api_base else []))
    if note := config._replace(unused_keys=unused_keys).note:
        of_endpoint = f"; the server that is measured is the backend's (--agentbench-backend={config.api_base})" if config.api_base else ""
        notify(f"{note}{of_endpoint}")
    return config.settings


#: Tool -> argument -> mode.
Modes = Mapping[str, Mapping[str, str]]


def with_modes(modes: Modes, scenarios: Sequence[Scenario]) -> tuple[Scenario, ...]:
    """Returns the scenarios, and adds to their labels (expected calls) how arguments are compared: `exact`, `ignore` or `pattern`.

    Raises ConfigError if a tool or argument is unknown, or if a label of mode `pattern` is not a regular expression.
    """
    _check_names(modes, scenarios)
    return tuple(replace(each, expected=tuple(_label(label, modes, each.id) for label in each.expected)) for each in scenarios)


def _label(label: Json, modes: Modes, scenario: str) -> Json:
    own = modes.get(str(label["tool"]))
    if not own:
        return label
    for name in (name for name, mode in own.items() if mode == "pattern"):
        for value in _values(label, name):
            if not isinstance(value, str) or not _compiles(value):
                where = f"arguments.{label['tool']}.{name}: in scenario {scenario!r}"
                raise ConfigError(f"{where} the label is not a regular expression: {value!r}; correct the label, or use another mode")
    return {**label, "modes": dict(own)}


def _values(label: Json, name: str) -> list[Any]:
    """Returns the right values of an argument according to a label (an expected call)."""
    if "accepts" in label:
        return list(label["accepts"].get(name, ()))
    parameters = label.get("parameters") or {}
    return [parameters[name]] if name in parameters else []


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _check_names(modes: Modes, scenarios: Sequence[Scenario]) -> None:
    known: dict[str, set[str]] = {}
    for tools in toolsets(scenarios):
        for tool in tools:
            known.setdefault(tool.name, set()).update(tool.parameters.get("properties") or ())
    for label in (label for each in scenarios for label in each.expected):
        names = {**(label.get("parameters") or {}), **(label.get("accepts") or {})}
        known.setdefault(str(label["tool"]), set()).update(names)
    for tool_name, own in modes.items():
        if tool_name not in known:
            raise ConfigError(f"arguments: {unknown_name('tool', tool_name, known)}")
        for name in own:
            if name not in known[tool_name]:
                raise ConfigError(f"arguments.{tool_name}: {unknown_name('argument', name, known[tool_name])}")


def suite_file(path: Path) -> Path:
    """Returns the suite.yaml in a folder, or in the folder of that name under scenarios/. Raises ConfigError if neither exists."""
    for folder in (path, "scenarios" / path):
        if (folder / SUITE_FILE).is_file():
            return folder / SUITE_FILE
    raise ConfigError(f"there is no suite in {path}{meant_suite(path)}; give a folder with a {SUITE_FILE}, such as scenarios/banking")


def meant_suite(path: Path) -> str:
    """Returns a suggestion for the path of a suite that does not exist: a suite in the same folder or under scenarios/. May be empty."""
    files = [file for folder in (Path("scenarios"), path.parent) for file in sorted(folder.glob(f"*/{SUITE_FILE}"))]
    return suggestion(path.name, {file.parent.name: file.parent for file in files})


@dataclass(frozen=True)
class SuiteText:
    """A suite.yaml that was parsed but not checked."""

    file: Path
    keys: Json

    @classmethod
    def of(cls, file: Path) -> SuiteText:
        """Parses a file. Raises ConfigError with the line of an error."""
        return cls(file, load_yaml(file))


def load_suite(file: Path, overrides: Sequence[tuple[str, Any]] = (), agent: str | None = None) -> Suite:
    """Parses a suite.yaml and returns its suite; see `read_suite`."""
    return read_suite(SuiteText.of(file), overrides, agent)


def read_suite(text: SuiteText, overrides: Sequence[tuple[str, Any]] = (), agent: str | None = None) -> Suite:
    """Returns the suite that a suite.yaml describes, with its data. The names of scorers and agents are not checked, and the suite has
    no scales (ranges and units of its scores) yet; `rollouts.compile` does both.

    Args:
        text: The parsed suite.yaml.
        overrides: (dotted path, value) pairs that are applied before the keys are checked, such as `("agent.temperature", 0.6)`.
        agent: Replaces the suite's agent and inherits its sampling parameters.

    Raises:
        ConfigError: With the file, the error, and what would work.
    """
    file, data = text.file, dict(text.keys)
    if agent is not None:
        data["agent"] = in_place_of(data.get("agent"), agent)
    notes: list[str] = []
    changes = [*with_typed_config(overrides, data.get("agent"), file.parent, notes.append)]
    spec = validate(SuiteSpec, with_role_file(override(data, changes, str(file)), file), str(file))
    tools = {"default": spec.tools, **{name: each.tools for name, each in spec.variants.items()}}
    answers = {"default": spec.answers, **{name: each.answers for name, each in spec.variants.items()}}
    scenarios, dataset = read_dataset(file, spec.dataset, without_tools=bool(spec.tools))
    try:
        scenarios = with_modes(spec.arguments, scenarios) if spec.arguments else scenarios
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return Suite(
        folder=file.parent,
        scenarios=tuple(_in_sandbox(each, spec) for each in scenarios),
        dataset=dataset,
        thresholds=spec.thresholds,
        agent=with_config(spec.agent, file.parent, notes.append),
        variants={name: _variant(spec, name, file.parent, notes.append) for name in spec.variants},
        notes=tuple(dict.fromkeys(notes)),
        gate=tuple(spec.gate),
        quarantine=tuple(Quarantined(**dict(each)) for each in spec.quarantine),
        tools={variant: each for variant, each in tools.items() if each},
        arguments=spec.arguments,
        answers={variant: _answers_as_json(each) for variant, each in answers.items() if each},
        sizes={name: variant.limit for name, variant in spec.variants.items() if variant.limit},
        roles=roles_as_json(spec.roles, spec.judge),
        limits=spec.limits.model_dump(exclude_none=True),
        xdist_workers=spec.xdist_workers,
        **{name: getattr(spec, name) for name in ("name", "scorers", "isolation", "trials", "timeout", "description", "deterministic")},
    )


def _answers_as_json(answers: Answers) -> Json:
    """Returns tool -> its canned answer, a JSON object with any of `text`, `delay` and `error_rate`."""
    return {tool: each.model_dump(exclude_defaults=True) for tool, each in answers.items()}


def _in_sandbox(scenario: Scenario, spec: SuiteSpec) -> Scenario:
    """Returns a scenario whose Harbor task has the suite's settings of sandbox and verifier. A scenario without a task is not changed."""
    if scenario.task is None:
        return scenario
    verifier, ranges = spec.verifier, tuple(spec.private_addresses)
    task = replace(scenario.task, sandbox=spec.sandbox, private_addresses=ranges, skipped=verifier.skipped, changed=verifier.changed)
    return replace(scenario, task=task)


def _variant(spec: SuiteSpec, name: str, folder: Path, notify: Notify) -> Json:
    """Returns the agent settings of a variant that differ from the suite's."""
    own: Json = spec.variants[name].agent
    kind = own.get("kind", spec.agent["kind"])
    settings = with_config({**own, "kind": kind}, folder, notify)
    return settings if "kind" in own else {key: value for key, value in settings.items() if key != "kind"}
