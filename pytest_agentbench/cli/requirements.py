"""What sessions take besides their backends: the questions of a suite, and the retriever and the roles that its agent asks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_agentbench.agents.factory import brings_code, make_agent, needs_roles, retriever_of
from pytest_agentbench.backends.proof.api import Api
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.import_path import is_import_path
from pytest_agentbench.lib.login_url import without_logins
from pytest_agentbench.records import JUDGE, Endpoint, Json
from pytest_agentbench.rollouts.scores import wants_judge
from pytest_agentbench.runs.option import declared
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.scorers import load_scorer
from pytest_agentbench.session.roles import player_of, why_unplayed
from pytest_agentbench.suites.folder import load_suite, suite_file

if TYPE_CHECKING:
    from pytest_agentbench.backends.common_spec import BackendSpec
    from pytest_agentbench.suites.suite import Suite

PATIENCE = 3.0  # seconds for a retriever to answer

#: Options of pytest that say which rollouts of a suite a session has; words that are none of them may leave some out.
CHOOSING = {name: declared(RunOptions)[name][""] for name in ("changes", "agent", "limit", "trials")}


@dataclass
class Requirements:
    """Lines about what sessions ask for, and a sentence for each thing that is missing."""

    lines: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedSessions:
    """Sessions of one suite that have not begun."""

    folder: str  # of the suite
    variant: str  # of it; empty: its own agent
    options: Sequence[str]  # of pytest
    backends: Mapping[str, BackendSpec]  # what each is called -> backend
    in_flight: int  # rollouts, at most

    def requirements(self) -> Requirements:
        """Looks at the suite and asks the retriever whether it is there; nothing is started."""
        found = Requirements()
        try:
            self._questions(found)
            self._agent(found)
        except ConfigError as error:
            found.missing.append(str(error))
        return found

    @cached_property
    def _said(self) -> tuple[dict[str, Any], list[str]]:
        """Values of the options that choose rollouts, and the other words; raises ConfigError."""
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
        """The suite as the options change it; raises ConfigError."""
        values, _ = self._said
        changes = [("agent.model" if path == "model" else path, value) for path, value in values["changes"].items()]
        own = [(path, value) for path, value in changes if not path.startswith("backend.")]
        return load_suite(suite_file(Path(self.folder)), own, values["agent"])

    def _questions(self, found: Requirements) -> None:
        (values, others), suite = self._said, self._suite
        trials = values["trials"] or suite.trials
        chosen = min(each for each in (len(suite.scenarios), values["limit"], suite.sizes.get(self.variant)) if each is not None)
        how_many = f"{chosen} of {len(suite.scenarios)}" if chosen < len(suite.scenarios) else f"all {chosen}"
        times = f", {trials} times each" if trials > 1 else ""
        left_out = "".join(f"; left out: {count} {what}" for what, count in suite.dataset.left_out.items())
        selected = f"; of them those that pytest selects by {' '.join(others)}" if others else ""
        where = suite.dataset.file or suite.dataset.format
        found.lines.append(f"questions: {how_many} of {suite.dataset.name} ({where}){times}{left_out}{selected}")
        if chosen * trials < self.in_flight:
            enough = -(-self.in_flight // max(chosen, 1))
            found.missing.append(
                f"questions: {chosen * trials} rollouts are never {self.in_flight} in flight; "
                f"take more questions, or each several times: -- --agentbench-trials={enough}"
            )

    def _agent(self, found: Requirements) -> None:
        """Says whom the agent and the scorers ask; raises ConfigError for an agent that there is not."""
        suite, variant = self._suite, self.variant or "default"
        if variant not in ("default", *suite.variants):
            raise ConfigError(f"{self.folder}: no variant {variant!r}; known: {', '.join(('default', *suite.variants))}")
        settings = suite.agent_of(variant)
        if brings_code(settings, suite.folder):
            found.lines.append(f"agent: {settings['kind']} is code of the suite; whom it asks is known when it runs")
            return
        agent = make_agent(settings, suite.folder)
        self._retriever(found, retriever_of(agent))
        for role in sorted(needs_roles(agent)):
            self._role(found, role)
        if any(wants_judge(load_scorer(name)) for name in suite.scorers if not is_import_path(name)):
            self._role(found, JUDGE)

    def _retriever(self, found: Requirements, url: str | None) -> None:
        if url is None:
            return
        if not url:
            found.lines.append("retriever: the agent's settings name none, so it has no tool `search`")
            return
        booted = all(_boots(spec, url) for spec in self.backends.values())
        answer, is_there = ("is a service of the backend", True) if booted else _asked(url)
        found.lines.append(f"retriever: {without_logins(url)} {answer}")
        if not is_there:
            found.missing.append(f"retriever: {without_logins(url)} {answer}; start it, or correct `retriever` of the agent")

    def _role(self, found: Requirements, role: str) -> None:
        """Says who plays a role: once where that is the same whatever the backend."""
        played = {name: self._player(role, spec) for name, spec in self.backends.items()}
        for text, why in dict.fromkeys(played.values()):
            names = [name for name, each in played.items() if each == (text, why)]
            whose = "" if len(names) == len(played) else f" ({', '.join(names)})"
            found.lines.append(f"role {role}{whose}: {text}")
            if why:
                found.missing.append(f"role {role}{whose}: {why}")

    def _player(self, role: str, spec: BackendSpec) -> tuple[str, str]:
        """(who plays a role before a backend, why nobody does)."""
        backend: Json = {"name": spec.name, "url": getattr(spec, "url", None), "roles": spec.beside["roles"]}
        player = player_of(role, self._suite, backend)
        if player is None and role == JUDGE:
            return "the backend under test", ""
        why = why_unplayed(role, self._suite, backend, keys=True)
        return ("nobody" if player is None else _words(player, is_set=not why)), why


def _words(player: Json, *, is_set: bool) -> str:
    """Which model plays a role, where, and whether the key that it wants is there."""
    place = f"the service {player['service']}" if "service" in player else without_logins(player.get("url", "the backend under test"))
    key = f", the key {player['api_key']} is {'set' if is_set else 'not set'}" if "api_key" in player else ""
    return f"{player['model']} at {place}{key}" if "model" in player else f"{place}{key}"


def _boots(spec: BackendSpec, url: str) -> bool:
    """Whether a stack has a service at the port of a URL on this machine."""
    at, services = urlsplit(url), getattr(spec, "services", {})
    return at.hostname in ("127.0.0.1", "localhost", "::1") and at.port in {service.port for service in services.values()} - {0}


def _asked(url: str) -> tuple[str, bool]:
    """What a retriever says of itself, and whether it can be asked."""
    try:
        answer = Api(Endpoint(url.rstrip("/"), "")).get("/health", PATIENCE)
    except BackendError:
        return "does not answer", False
    if answer.status != 200:
        return f"answers {answer} to GET /health", False
    said = answer.json()
    return (f"answers, {said['documents']} documents" if isinstance(said, dict) and "documents" in said else "answers"), True
