"""Checks of a suite's agents against the backend, before anything boots: roles, their keys, and the length of prompts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_agentbench.agents.factory import brings_code, make_agent, needs_context, needs_roles, too_long
from pytest_agentbench.backends.common_spec import context_length_of
from pytest_agentbench.llm.keys import missing_key
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import SUITE_FILE, Suite

if TYPE_CHECKING:
    from pytest_agentbench.session.discovery import DiscoveredSuite


def with_roles_played(discovered: DiscoveredSuite, backend: Json, *, keys: bool) -> DiscoveredSuite:
    """The suite, or why it cannot run on this backend, which `backend` describes. `keys`: whether they have to be there, for rollouts run.

    Agents that bring code of their own are loaded where their rollouts run, and a role that nobody plays is told there.
    """
    for variant in discovered.variants if discovered.suite else ():
        if why := _mismatch(discovered, variant, backend, keys):
            return dataclasses.replace(discovered, suite=None, error=f"{discovered.folder / SUITE_FILE}: {why}")
    return discovered


def _mismatch(discovered: DiscoveredSuite, variant: str, backend: Json, keys: bool) -> str:
    """Returns a sentence if the agent of a variant cannot work with the backend and the roles, else an empty text."""
    assert discovered.suite is not None
    settings = discovered.suite.agent_of(variant)
    if brings_code(settings, discovered.suite.folder):
        return ""
    own = backend["arms"][discovered.sides[variant].arm] if "arms" in backend else backend
    agent = make_agent(settings, discovered.suite.folder)
    if why := too_long(needs_context(agent), context_length_of(own)):
        return f"agent: {why}"
    for role in sorted(needs_roles(agent)):
        if why := why_unplayed(role, discovered.suite, own, keys=keys):
            return f"agent: {settings['kind']!r} asks the role {role!r}, and {why}"
    return ""


def player_of(role: str, suite: Suite, backend: Json) -> Json | None:
    """Returns the player of a role: that of the backend, else that of the suite, else None."""
    player: Json | None = backend.get("roles", {}).get(role, suite.roles.get(role))
    return player


def why_unplayed(role: str, suite: Suite, backend: Json, *, keys: bool) -> str:
    """Returns the reason why a role cannot be played, or an empty text. `keys`: whether the key of its endpoint has to be set."""
    player = player_of(role, suite, backend)
    if player is None:
        return f"nobody plays it: `roles` of suite.yaml or of the YAML of backend {backend.get('name')!r} has to name it"
    is_backend = str(player.get("url", "")).rstrip("/") == str(backend.get("url")).rstrip("/")  # whose own key is used then
    return missing_key(player) if keys and not is_backend else ""
