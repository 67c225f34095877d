"""Checks of a suite's agents against the backend, before anything boots: roles, their keys, and the length of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_agentbench.agents.factory import needs_context, needs_roles, too_long
from pytest_agentbench.backends.spec import context_length_of
from pytest_agentbench.llm.client import missing_key
from pytest_agentbench.records import Json
from pytest_agentbench.session.discovery import DiscoveredSuites, unavailable_suite
from pytest_agentbench.suites.suite import SUITE_FILE, Suite

if TYPE_CHECKING:
    from pytest_agentbench.rollouts.compile import CompiledSuite


def playable_suites(suites: DiscoveredSuites, backend: Json, *, keys: bool) -> DiscoveredSuites:
    """Returns the suites, without those that cannot run on a backend; `backend` describes it.

    `keys` says whether the keys of roles have to be there, since rollouts run. Agents that bring code of their own are loaded where
    their rollouts run, and a role that nobody plays is told there.
    """
    faults = {each.folder: why for each in suites.compiled if (why := next(filter(None, _mismatches(each, backend, keys)), ""))}
    faulty = {folder: unavailable_suite(folder, f"{folder / SUITE_FILE}: {why}") for folder, why in faults.items()}
    return DiscoveredSuites([each for each in suites.compiled if each.folder not in faults], {**suites.unavailable, **faulty})


def _mismatches(compiled: CompiledSuite, backend: Json, keys: bool) -> Iterator[str]:
    """Yields a sentence for each agent that cannot work with the backend and for each of its roles that nobody plays."""
    for variant, agent in compiled.agents.items():
        if "arms" in backend and variant not in compiled.origins:  # -m leaves the suite out, so that it has no arms
            continue
        own = backend["arms"][compiled.origins[variant].arm] if "arms" in backend else backend
        if why := too_long(needs_context(agent), context_length_of(own)):
            yield f"agent: {why}"
        for role in sorted(needs_roles(agent)):
            if why := why_not_playable(role, compiled.suite, own, keys=keys):
                yield f"agent: {compiled.suite.agent_of(variant)['kind']!r} asks the role {role!r}, and {why}"


def player_of(role: str, suite: Suite, backend: Json) -> Json | None:
    """Returns the player of a role: that of the backend, else that of the suite, else None."""
    player: Json | None = backend.get("roles", {}).get(role, suite.roles.get(role))
    return player


def why_not_playable(role: str, suite: Suite, backend: Json, *, keys: bool) -> str:
    """Returns the reason why a role cannot be played, or an empty text. `keys`: whether the key of its endpoint has to be set."""
    player = player_of(role, suite, backend)
    if player is None:
        return f"nobody plays it: `roles` of suite.yaml or of the YAML of backend {backend.get('name')!r} has to name it"
    is_backend = str(player.get("url", "")).rstrip("/") == str(backend.get("url")).rstrip("/")  # whose own key is used then
    return missing_key(player) if keys and not is_backend else ""
