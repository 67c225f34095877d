"""Backends of kind `stack`: their YAML with the services that it includes, and how the controller holds one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.versions import named_files
from pytest_agentbench.backends.spec import BackendSpec, SessionTerms
from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.protocol import ServicesRestarting
from pytest_agentbench.backends.stack.spec import StackSpec, expand
from pytest_agentbench.backends.telemetry.samples import Sources
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.config import load_yaml
from pytest_agentbench.records import Endpoint, Json

if TYPE_CHECKING:
    from pytest_agentbench.backends.doctor.check import Check


def with_included(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """A stack with the services of the YAMLs that it includes before its own; raises ConfigError for a service that is there twice."""
    services: dict[str, Any] = {}
    names = data.pop("include", [])
    for name in [names] if isinstance(names, str) else names:
        other = load_yaml(file.parent / str(name))
        if unknown := [key for key in other if key not in ("services", "include", "note")]:
            raise ConfigError(f"{file.parent / str(name)}: {unknown[0]!r} cannot be in a file that others include; only services can")
        services = _merged(services, with_included(other, file.parent / str(name))["services"], file)
    return {**data, "services": _merged(services, data.get("services") or {}, file)}


def _merged(services: dict[str, Any], more: dict[str, Any], file: Path) -> dict[str, Any]:
    if twice := sorted(services.keys() & more.keys()):
        raise ConfigError(f"{file}: the service {twice[0]!r} is there twice, here or in what is included")
    return {**services, **more}


STACK_DAEMON = "stack daemon"  # what a session calls the process that keeps a stack
NOTICE_TIMEOUT = 5.0  # seconds that the death of a stack daemon or a service may take to be noticed


class Stacked(Backend):
    """Services of this machine; a stack daemon process starts, watches and stops them."""

    waits = True

    def __init__(self, spec: StackSpec, terms: SessionTerms) -> None:
        self.spec, self.terms = spec, terms
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        settings = spec.model_dump(exclude={"thresholds", "here"}, exclude_none=True, exclude_defaults=True)
        self.description: Json = {"kind": spec.kind, **settings}
        self.status = ""  # what the boot waits for
        self._held: registry.HeldStack | None = None
        self._is_kept = False  # when this session lets it go
        self._stopped = threading.Event()
        self._is_unavailable = False  # whether the session has been told of a part that is away
        self._url = ""  # where it answers
        self._directory = Path()  # of logs

    @property
    def identity(self) -> Json:
        without = {"name", "note", "thresholds", "prices", "roles", "here", "warm_up", "sample_every"}
        return self.spec.model_dump(mode="json", exclude=without, exclude_defaults=True) | self.spec.who_plays

    @property
    def facts(self) -> Json:
        boot = self._held.boot if self._held is not None else {}
        return {
            **{name: boot.get(name) for name in ("services", "environment", "server", "model", "hardware")},
            "files": named_files(self.spec),
        }

    def start(self, directory: Path) -> Endpoint:
        """One that is kept and idle is used again; its prefix cache is warm. What has not served yet is not kept.

        What dead stack daemons have left is ended first: it may have the GPUs and ports that this one needs.
        """
        self._directory = directory
        self.description["reaped"] = registry.clean_up_orphans()
        kept = registry.find_kept(self.spec)
        self.description["passed_over"] = kept if isinstance(kept, str) else ""
        # set before `stop`, which another thread may call, has something to stop
        self._is_kept = self.description["reused"] = not isinstance(kept, str)
        if isinstance(kept, str):
            kept = registry.start(self.spec, directory, gpu_wait=self.terms.gpu_wait, warm_up=self.terms.warm_up)
        self._held = kept
        if self._stopped.is_set():  # while the stack daemon was starting
            self.stop()
        answering = self._held.ready(self._progress)
        self._url, self._is_unavailable = answering.url, False
        labels, beside = self._labels(self._held.home / "run"), self.spec.beside
        beside["roles"] = {name: self._role(role, self._held.boot["urls"]) for name, role in beside["roles"].items()}
        endpoint = replace(answering, backend=self.name, labels=labels, **beside)
        self.description |= {"boot": self._held.boot, "restarts": {}}
        if self.terms.keep is not None:
            self._held.keep(self.terms.keep)
            self._is_kept = True
        return endpoint

    def _labels(self, run_dir: Path) -> Json:
        """Those of the YAML, with the folder of the boot in the place of a trace."""
        labels: Json = self.spec.labels.model_dump(exclude_defaults=True)
        return {**labels, "trace": expand(labels["trace"], {"run_dir": str(run_dir)}, "labels.trace")} if "trace" in labels else labels

    def _role(self, role: Json, urls: Json) -> Json:
        """A role with the URL of the service that plays it, where one does."""
        service = role.pop("service", None)
        return role if service is None else {**role, "url": f"{urls[service]}{self.spec.path}"}

    def metrics(self) -> Sources:
        assert self._held is not None
        leased = [gpu for ids in self._held.boot.get("gpus", {}).values() for gpu in ids]
        return Sources(self._held.metrics, tuple(gpus.find(leased)), self.spec.sample_every)

    def watch(self, tell: Tell) -> str | None:
        """The stack daemon starts services again, as often as the YAML says."""
        assert self._held is not None

        def on_restart(message: ServicesRestarting) -> None:
            self.description["restarts"] = message.restarts
            tell(message.services)
            self._is_unavailable = bool(message.services)

        return self._held.death(on_restart) or None

    def look(self) -> str:
        """Waits until `watch` or `boot_again` has told what is away, for NOTICE_TIMEOUT seconds, if nothing listens at its URL.

        A service may be dead before its daemon has noticed it, and a stack daemon before this process has. Without the wait an attempt
        that began in between would not count as interrupted.
        """
        end = time.monotonic() + NOTICE_TIMEOUT
        while not (self._is_unavailable or self._stopped.is_set() or time.monotonic() > end or _listens(self._url)):
            time.sleep(0.02)
        return ""

    def boot_again(self, tell: Tell) -> Endpoint | None:
        """Boots the stack once more if its daemon has died. The ports may be others."""
        assert self._held is not None
        if not self._held.is_orphaned or self._stopped.is_set() or not tell([STACK_DAEMON]):
            return None
        self._is_unavailable = True
        self._held.stop()  # ends the services that the stack daemon has left
        began = time.monotonic()
        try:
            return self.start(self._directory)
        except BackendError as error:
            seconds = f"{time.monotonic() - began:.0f} s (ready.timeout: {self.spec.ready.timeout:g} s)"
            raise BackendError(f"the stack was booted once more, and did not serve after {seconds}: {error}") from error

    def stop(self) -> None:
        """A kept one is let go and stays."""
        self._stopped.set()
        if self._held is None:
            return
        if self._is_kept:
            self._held.let_go()
        else:
            self.stop_note = self._held.stop() or self.stop_note

    def _progress(self, text: str) -> None:
        self.status = text


def _listens(url: str) -> bool:
    """Returns whether a server accepts connections at the host and port of a URL."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port or 80), timeout=1).close()
    except OSError:
        return False
    return True


class StackKind(StackSpec, BackendSpec):
    """Services on this machine, booted for a session."""

    def make(self, terms: SessionTerms) -> Stacked:
        return Stacked(self, terms)

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        """With the services that it includes, and the folder of its YAML."""
        return {**with_included(data, file), "here": str(file.parent.absolute())}

    def refuse_mistakes(self) -> None:
        from pytest_agentbench.backends.stack.instances import refuse_mistakes

        refuse_mistakes(self)

    def checks(self, *, reach: bool) -> Iterator[Check]:
        from pytest_agentbench.backends.doctor.host import stack_checks

        del reach
        return stack_checks(self)
