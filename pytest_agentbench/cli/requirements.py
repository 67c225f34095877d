"""Finds out what planned sessions need besides backends: enough scenarios, a retriever, and models for roles such as the judge."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_agentbench.agents.factory import brings_code, make_agent, needs_roles, retriever_of
from pytest_agentbench.backends.api import Api
from pytest_agentbench.errors import BackendError, ConfigError, unknown_name
from pytest_agentbench.lib.options import without_logins
from pytest_agentbench.lib.user_code import is_import_path
from pytest_agentbench.records import JUDGE, Endpoint, Json
from pytest_agentbench.rollouts.scores import wants_judge
from pytest_agentbench.runs.option import declared
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.scorers import load_scorer
from pytest_agentbench.session.roles import player_of, why_not_playable
from pytest_agentbench.suites.folder import load_suite, suite_file

if TYPE_CHECKING:
    from pytest_agentbench.backends.spec import BackendSpec
    from pytest_agentbench.suites.suite import Suite

PATIENCE = 3.0  # seconds for a retriever to answer

#: Pytest options that determine which rollouts of a suite a session has. Other arguments, such as -k, may select only some of them.
CHOOSING = {name: declared(RunOptions)[name][""] for name in ("changes", "agent", "limit", "trials")}


@dataclass
class Requirements:
    """The needs of planned sessions: a line about each for the user, and a sentence for each one that is not met."""

    lines: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedSessions:
    """The sessions that `agentbench reproduce` will run: one suite and one variant, on each of several backends."""

    folder: str  # folder of the suite
    variant: str  # name of its variant; empty: its own agent
    options: Sequence[str]  # arguments for pytest
    backends: Mapping[str, BackendSpec]  # name of a method -> its backend
    in_flight: int  # rollouts, at most

    def requirements(self) -> Requirements:
        """Returns what the sessions need. Reads the suite and requests the health of its retriever, but starts nothing."""
        needs = Requirements()
        try:
            self._questions(needs)
            self._agent(needs)
        except ConfigError as error:
            needs.missing.append(str(error))
        return needs

    @cached_property
    def _choice(self) -> tuple[dict[str, Any], list[str]]:
        """The values of the pytest options that decide which rollouts a session has (CHOOSING), and the other arguments for pytest.

        Raises ConfigError if a value is invalid.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        for name, option in CHOOSING.items():
            parser.add_argument(option.flag, dest=name, action="append" if option.many else "store")
        try:
            given, others = parser.parse_known_args([*self.options])
            values = {name: option.value(getattr(given, name) or ([] if option.many else "")) for name, option in CHOOSING.items()}
        except (ValueError, argparse.ArgumentError) as error:
            raise ConfigError(str(error)) from error
        return values, others

    @cached_property
    def _suite(self) -> Suite:
        """The suite, with the changes from the options. Raises ConfigError if it cannot be loaded."""
        values, _ = self._choice
        changes = [("agent.model" if path == "model" else path, value) for path, value in values["changes"].items()]
        own = [(path, value) for path, value in changes if not path.startswith("backend.")]
        return load_suite(suite_file(Path(self.folder)), own, values["agent"])

    def _questions(self, needs: Requirements) -> None:
        (values, others), suite = self._choice, self._suite
        trials = values["trials"] or suite.trials
        chosen = min(each for each in (len(suite.scenarios), values["limit"], suite.sizes.get(self.variant)) if each is not None)
        how_many = f"{chosen} of {len(suite.scenarios)}" if chosen < len(suite.scenarios) else f"all {chosen}"
        times = f", {trials} times each" if trials > 1 else ""
        left_out = "".join(f"; left out: {count} {what}" for what, count in suite.dataset.left_out.items())
        selected = f"; only those that pytest selects by {' '.join(others)}" if others else ""
        where = suite.dataset.file or suite.dataset.format
        needs.lines.append(f"questions: {how_many} of {suite.dataset.name} ({where}){times}{left_out}{selected}")
        if chosen * trials < self.in_flight:
            enough = -(-self.in_flight // max(chosen, 1))
            needs.missing.append(
                f"questions: {chosen * trials} rollouts are fewer than the concurrency of {self.in_flight}; "
                f"select more questions, or run each several times: -- --agentbench-trials={enough}"
            )

    def _agent(self, needs: Requirements) -> None:
        """Adds to `needs` the retriever and the roles (such as the judge) that the agent and built-in scorers need.

        Raises ConfigError for an unknown agent or variant.
        """
        suite, variant = self._suite, self.variant or "default"
        if variant not in ("default", *suite.variants):
            raise ConfigError(f"{self.folder}: {unknown_name('variant', variant, ('default', *suite.variants))}")
        settings = suite.agent_of(variant)
        if brings_code(settings, suite.folder):
            needs.lines.append(
                f"agent: {settings['kind']} is code of the suite; the retriever and roles that it needs are known only when it runs"
            )
            return
        agent = make_agent(settings, suite.folder)
        self._retriever(needs, retriever_of(agent))
        for role in sorted(needs_roles(agent)):
            self._role(needs, role)
        if any(wants_judge(load_scorer(name)) for name in suite.scorers if not is_import_path(name)):
            self._role(needs, JUDGE)

    def _retriever(self, needs: Requirements, url: str | None) -> None:
        if url is None:
            return
        if not url:
            needs.lines.append("retriever: none in the agent's settings, so the agent has no tool `search`")
            return
        booted = all(_boots(spec, url) for spec in self.backends.values())
        answer, is_there = ("is a service of the backend", True) if booted else _health_of(url)
        needs.lines.append(f"retriever: {without_logins(url)} {answer}")
        if not is_there:
            needs.missing.append(f"retriever: {without_logins(url)} {answer}; start it, or correct `retriever` of the agent")

    def _role(self, needs: Requirements, role: str) -> None:
        """Adds to `needs` the player of a role (the model that answers its calls) on each backend, in one line if all are the same."""
        played = {name: self._player(role, spec) for name, spec in self.backends.items()}
        for text, why in dict.fromkeys(played.values()):
            names = [name for name, each in played.items() if each == (text, why)]
            whose = "" if len(names) == len(played) else f" ({', '.join(names)})"
            needs.lines.append(f"role {role}{whose}: {text}")
            if why:
                needs.missing.append(f"role {role}{whose}: {why}")

    def _player(self, role: str, spec: BackendSpec) -> tuple[str, str]:
        """Returns the player of a role on a backend in words, and the reason if it cannot be used (otherwise empty)."""
        backend: Json = {"name": spec.name, "url": getattr(spec, "url", None), "roles": spec.endpoint_fields["roles"]}
        player = player_of(role, self._suite, backend)
        if player is None and role == JUDGE:
            return "the backend under test", ""
        why = why_not_playable(role, self._suite, backend, keys=True)
        return ("none" if player is None else _words(player, is_set=not why)), why


def _words(player: Json, *, is_set: bool) -> str:
    """Describes the player of a role: its model, its server, and whether the variable of its API key is set."""
    place = f"the service {player['service']}" if "service" in player else without_logins(player.get("url", "the backend under test"))
    key = f", the key {player['api_key']} is {'set' if is_set else 'not set'}" if "api_key" in player else ""
    return f"{player['model']} at {place}{key}" if "model" in player else f"{place}{key}"


def _boots(spec: BackendSpec, url: str) -> bool:
    """Returns whether a stack starts a service on this machine at the port of a URL."""
    at, services = urlsplit(url), getattr(spec, "services", {})
    return at.hostname in ("127.0.0.1", "localhost", "::1") and at.port in {service.port for service in services.values()} - {0}


def _health_of(url: str) -> tuple[str, bool]:
    """Requests the health of a retriever. Returns the result in words, and whether the retriever works."""
    try:
        answer = Api(Endpoint(url.rstrip("/"), "")).get("/health", PATIENCE)
    except BackendError:
        return "does not answer", False
    if answer.status != 200:
        return f"answers {answer} to GET /health", False
    health = answer.json()
    return (f"answers, {health['documents']} documents" if isinstance(health, dict) and "documents" in health else "answers"), True
