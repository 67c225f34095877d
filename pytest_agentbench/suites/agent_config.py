"""Files of the Harbor guide as settings of the agent `terminal`: `config: agent_config.json`, or the config.yaml of its server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import load_yaml
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.records import SAMPLING, Json

KIND, KEY = "terminal", "config"

#: What an agent_config.json may say beside sampling parameters.
OPTIONS = ("system_prompt", "max_iterations")

#: What it may say and what decides nothing here: an agent has no name of its own, and it is asked by Chat Completions only.
WITHOUT_USE = ("agent_name", "name", "api_type")

API_BASE = "api_base"  # the URL of the server in an agent_config.json

#: Where a config.yaml has the model, and the default sampling parameters of its server.
MODEL, INFERENCE = "model_information.model_config", "model_information.inference_parameters"

#: Keys of the model's: it is the folder where it is local.
IS_LOCAL, LOCAL_NAME, HUB_NAME = "is_model_local", "model_path", "model_id"

Say = Callable[[str], None]


class AgentConfig(NamedTuple):
    """A file of the guide's."""

    file: Path
    settings: Json  # options and sampling parameters of the agent
    api_base: str  # URL of the model's server, or empty
    left: tuple[str, ...]  # its other keys

    @property
    def note(self) -> str:
        """Returns a sentence that names the keys that are not used, or an empty text."""
        return f"{self.file}: not used: {', '.join(self.left)}" if self.left else ""


def read_agent_config(file: Path) -> AgentConfig:
    """Reads an agent_config.json, or a config.yaml; raises ConfigError with the file and the key."""
    return _of_server(file) if file.suffix in {".yaml", ".yml"} else _of_agent(file)


def _of_agent(file: Path) -> AgentConfig:
    data = read_json_file(file)
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: is {type(data).__name__}, should be an object of settings")
    known = (*SAMPLING, *OPTIONS, API_BASE, *WITHOUT_USE)
    for name in data:
        if name not in known:
            raise ConfigError(f"{file}: unknown key {name!r}; known keys: {', '.join(known)}")
    settings = {name: data[name] for name in data if name in (*SAMPLING, *OPTIONS)}
    return AgentConfig(file, settings, str(data.get(API_BASE, "")), tuple(name for name in data if name in WITHOUT_USE))


def _of_server(file: Path) -> AgentConfig:
    """Reads a config.yaml. Its other keys are options of vLLM, whose names change, so none of them is an error."""
    data = load_yaml(file)
    named = _place(data, MODEL, file)
    parameters = _place(data, INFERENCE, file)
    name = LOCAL_NAME if named.get(IS_LOCAL) else HUB_NAME
    settings = {key: value for key, value in parameters.items() if key in SAMPLING}
    if named.get(name):
        settings["model"] = named[name]
    if not settings:
        raise ConfigError(f"{file}: has neither {MODEL}.{HUB_NAME} nor sampling parameters in {INFERENCE}")
    used = {f"{MODEL}.{name}", f"{MODEL}.{IS_LOCAL}", *(f"{INFERENCE}.{key}" for key in SAMPLING)}
    return AgentConfig(file, settings, "", tuple(_unused(data, used)))


def _place(data: Json, path: str, file: Path) -> Json:
    """Returns the mapping at a dotted path, or an empty one."""
    value: Any = data
    for key in path.split("."):
        value = value.get(key) or {}
        if not isinstance(value, dict):
            raise ConfigError(f"{file}: {path} should be a mapping of keys")
    return dict(value)


def _unused(data: Mapping[str, Any], used: set[str], above: str = "") -> Iterator[str]:
    """Dotted paths of what is not used; a part of which nothing is used comes as a whole."""
    for key, value in data.items():
        path = f"{above}{key}"
        if any(each.startswith(f"{path}.") for each in used) and isinstance(value, dict):
            yield from _unused(value, used, f"{path}.")
        elif path not in used:
            yield path


def with_config(agent: Json, folder: Path, say: Say) -> Json:
    """The settings with those of the file that they name; what stands beside it wins. `say` is told what of the file is not used."""
    if agent.get("kind") != KIND or KEY not in agent:
        return agent
    own = {name: value for name, value in agent.items() if name != KEY}
    return {**_settings(folder, str(agent[KEY]), say), **own}


def with_typed_config(changes: Sequence[tuple[str, Any]], agent: Any, folder: Path, say: Say) -> Iterator[tuple[str, Any]]:
    """The changes of a suite, `agent.config=FILE` as one for each of the file's settings: what is typed wins over what suite.yaml has."""
    for path, value in changes:
        if path == f"agent.{KEY}" and isinstance(agent, dict) and agent.get("kind") == KIND:
            yield from ((f"agent.{name}", each) for name, each in _settings(folder, str(value), say).items())
        else:
            yield path, value


def _settings(folder: Path, name: str, say: Say) -> Json:
    """Returns the settings in a file that is beside suite.yaml or, failing that, in the working directory."""
    file = folder / name
    config = read_agent_config(file if file.exists() or not Path(name).exists() else Path(name))
    left = (*config.left, *([API_BASE] if config.api_base else []))
    if note := config._replace(left=left).note:
        of_endpoint = f"; the server that is measured is the backend's (--agentbench-backend={config.api_base})" if config.api_base else ""
        say(f"{note}{of_endpoint}")
    return config.settings
