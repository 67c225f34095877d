"""From the settings in a suite.yaml to an agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_agentbench.agents import AGENTS, Agent, load_agent
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import SAMPLING, Json

#: Setting of every agent: whether its calls that do not stream travel as streams, so that they have a TTFT.
UPGRADE = "stream_upgrade"

#: Metadata of an option that holds the settings of another agent, which is made from them: `field(metadata=AN_AGENT)`.
AN_AGENT: Mapping[str, bool] = {"agent": True}


def make_agent(settings: Json, folder: Path) -> Agent:
    """The agent that settings describe; raises ConfigError that says what is wrong with them."""
    kind = settings.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"agent: the key 'kind' is missing; known: {', '.join(AGENTS)}, or an import path")
    cls = load_agent(kind, folder)
    options = {each.name: each for each in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    known = ("kind", *SAMPLING, UPGRADE, *options)
    for name in settings:
        if name not in known:
            raise ConfigError(f"agent: unknown key {name!r}; known keys of {kind}: {', '.join(known)}")
    if not isinstance(settings.get(UPGRADE), bool | None):
        raise ConfigError(f"agent: {UPGRADE} should be true or false, not {settings[UPGRADE]!r}")
    given = {name: _inner(name, value, folder) if options[name].metadata.get("agent") else value
             for name, value in settings.items() if name in options}  # fmt: skip
    try:
        agent: Agent = cls(**given)
    except Exception as error:  # the class may be the user's: an option without a default, a check of its own, no class at all
        raise ConfigError(f"agent: {kind!r} cannot be made from its settings: {error}") from error
    return agent


def kinds(settings: Json) -> Iterator[str]:
    """The kind of an agent, and those of the agents that it wraps."""
    yield str(settings.get("kind"))
    if (inner := settings.get("wraps")) is not None:
        yield from kinds(inner) if isinstance(inner, dict) else [str(inner)]


def _inner(name: str, settings: Any, folder: Path) -> Agent:
    """The agent that another one has as an option, from its kind or from its settings."""
    settings = {"kind": settings} if isinstance(settings, str) else settings
    if not isinstance(settings, dict):
        raise ConfigError(f"agent: {name} should be an agent's kind or settings, not {settings!r}")
    try:
        return make_agent(settings, folder)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def all_options(settings: Json, agent: Agent) -> Json:
    """The settings with the agent's defaults filled in, so that a run records what it ran with."""
    defaults: Json = dataclasses.asdict(agent) if dataclasses.is_dataclass(agent) and not isinstance(agent, type) else {}
    return {**defaults, **settings}
