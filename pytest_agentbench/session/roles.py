"""Checks whether a suite's agents can run with the backend, before anything boots: context length, roles and their API keys.

A role is another model that an agent asks, such as a judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_agentbench.agents.factory import needs_context, needs_roles, too_long
from pytest_agentbench.backends.spec import context_length_of
from pytest_agentbench.llm.access import is_backend, missing_key
from pytest_agentbench.records import Json
from pytest_agentbench.session.discovery import DiscoveredSuites, unavailable_suite
from pytest_agentbench.suites.suite import SUITE_FILE, Suite

if TYPE_CHECKING:
    from pytest_agentbench.rollouts.compile import CompiledSuite


def playable_suites(suites: DiscoveredSuites, backend: Json, *, keys: bool) -> DiscoveredSuites:
    """Returns the suites, with those that cannot run on the backend marked as unavailable. `backend` is its description.

    `keys` says whether API keys of roles must be set, because rollouts will run. The roles of agents with their own code are checked when
    that code is loaded, in the process of their rollouts.
    """
    faults = {each.folder: why for each in suites.compiled if (why := next(filter(None, _mismatches(each, backend, keys)), ""))}
    faulty = {folder: unavailable_suite(folder, f"{folder / SUITE_FILE}: {why}") for folder, why in faults.items()}
    return DiscoveredSuites([each for each in suites.compiled if each.folder not in faults], {**suites.unavailable, **faulty})


def _mismatches(compiled: CompiledSuite, backend: Json, keys: bool) -> Iterator[str]:
    """Yields a sentence for each agent whose context does not fit the backend, and for each role that has no endpoint."""
    for variant, agent in compiled.agents.items():
        if "arms" in backend and variant not in compiled.origins:  # -m excludes the suite, so it has no arms.
            continue
        own = backend["arms"][compiled.origins[variant].arm] if "arms" in backend else backend
        if why := too_long(needs_context(agent), context_length_of(own)):
            yield f"agent: {why}"
        for role in sorted(needs_roles(agent)):
            if why := why_not_playable(role, compiled.suite, own, keys=keys):
                yield f"agent: {compiled.suite.agent_of(variant)['kind']!r} needs the role {role!r}: {why}"


def player_of(role: str, suite: Suite, backend: Json) -> Json | None:
    """Returns the endpoint of a role (a model such as a judge) from the backend's YAML, else from suite.yaml, else None."""
    player: Json | None = backend.get("roles", {}).get(role, suite.roles.get(role))
    return player


def why_not_playable(role: str, suite: Suite, backend: Json, *, keys: bool) -> str:
    """Returns why a role (a model such as a judge) cannot be used, or an empty text. `keys` says whether its API key must be set."""
    player = player_of(role, suite, backend)
    if player is None:
        return f"no endpoint is configured for it; add it to `roles` in suite.yaml or in the YAML of backend {backend.get('name')!r}"
    own = is_backend(player, str(backend.get("url")), plays_roles=backend.get("kind") == "recorded")
    return missing_key(player) if keys and not own else ""
