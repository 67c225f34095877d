"""An agent_config.json as settings of the agent `terminal`: `config: agent_config.json`."""

from __future__ import annotations

from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.records import SAMPLING, Json

KIND, KEY = "terminal", "config"

#: What a file may say beside sampling parameters.
OPTIONS = ("system_prompt", "max_iterations")

#: What it may say and what decides nothing here: a run knows by its backend which endpoint it measures.
OF_THE_ENDPOINT = ("name", "api_base", "api_type")


def with_config(agent: Json, folder: Path) -> Json:
    """The settings with those of the file that they name; what stands beside it wins. Raises ConfigError with the file and the key."""
    if agent.get("kind") != KIND or KEY not in agent:
        return agent
    own = {name: value for name, value in agent.items() if name != KEY}
    return {**_read(folder / str(agent[KEY])), **own}


def _read(file: Path) -> Json:
    data = read_json_file(file)
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: is {type(data).__name__}, should be an object of settings")
    known = (*SAMPLING, *OPTIONS, *OF_THE_ENDPOINT)
    for name in data:
        if name not in known:
            raise ConfigError(f"{file}: unknown key {name!r}; known keys: {', '.join(known)}")
    return {name: value for name, value in data.items() if name not in OF_THE_ENDPOINT}
