"""Backends of `kind: stack`: reading their YAML, and the `Backend` object through which a session uses a stack."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.labels_spec import with_table_beside
from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.versions import named_files
from pytest_agentbench.backends.ready import missing_workers
from pytest_agentbench.backends.spec import BackendSpec, SessionTerms
from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.composition import refuse_unused_settings, with_base
from pytest_agentbench.backends.stack.protocol import ServicesRestarting
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.templates import expand
from pytest_agentbench.backends.telemetry.samples import Sources
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.records import Endpoint, Json

if TYPE_CHECKING:
    from pytest_agentbench.backends.doctor.check import Check


STACK_DAEMON = "stack daemon"  # name of the process in a session
RUN_METRICS = "run-metrics.json"  # file in {run_dir} with the address of the run's metrics, as targets for Prometheus
NOTICE_TIMEOUT = 5.0  # seconds until the death of a stack daemon or a service is noticed at the latest


class Stacked(Backend):
    """A backend that is a stack. It runs in the session and talks to the stack daemon, a process that starts and restarts the services.

    If the daemon dies, `watch` returns, and `boot_again` boots the stack with a new daemon.
    """

    waits = True

    def __init__(self, spec: StackSpec, terms: SessionTerms) -> None:
        self.spec, self.terms = spec, terms
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        settings = spec.model_dump(exclude={"thresholds", "nodes", "here"}, exclude_none=True, exclude_defaults=True)
        self.description: Json = {"kind": spec.kind, **settings}
        self.status = ""  # what the boot is waiting for
        self._held: registry.HeldStack | None = None
        self._is_kept = False  # whether the stack stays up when the session ends
        self._stopped = threading.Event()
        self._is_unavailable = False  # whether the session knows that a part is unavailable
        self._answering: Endpoint | None = None  # the endpoint, without labels and keys of the YAML; set after the boot
        self._directory = Path()  # folder of logs

    @property
    def identity(self) -> Json:
        without = {"name", "note", "thresholds", "prices", "roles", "nodes", "here", "warm_up", "sample_every"}
        return self.spec.model_dump(mode="json", exclude=without, exclude_defaults=True) | self.spec.role_identity

    @property
    def facts(self) -> Json:
        boot = self._held.boot if self._held is not None else {}
        return {
            **{name: boot.get(name) for name in ("services", "environment", "server", "model", "hardware")},
            "files": named_files(self.spec),
        }

    def start(self, directory: Path) -> Endpoint:
        """Reuses a stack that another session has kept running, or boots a new one. The prefix cache of a reused stack is warm.

        Leftovers of dead stack daemons are cleaned up first, because they may use GPUs and ports that this stack needs. A new stack is
        kept for later sessions only if its boot succeeds.
        """
        self._directory = directory
        self.description["reaped"] = registry.clean_up_orphans()
        kept = registry.find_kept(self.spec)
        self.description["passed_over"] = kept if isinstance(kept, str) else ""
        # Set before `_held`: another thread may call `stop`, which needs it as soon as there is a held stack.
        self._is_kept = self.description["reused"] = not isinstance(kept, str)
        if isinstance(kept, str):
            kept = registry.start(self.spec, directory, gpu_wait=self.terms.gpu_wait, warm_up=self.terms.warm_up)
        self._held = kept
        if self._stopped.is_set():  # It was stopped while the stack daemon was starting.
            self.stop()
        answering = self._held.ready(self._progress)
        self._write_run_metrics(self.run_metrics)
        self._answering, self._is_unavailable = answering, False
        labels, fields = self._labels(self._held.home / "run"), self.spec.endpoint_fields
        fields["roles"] = {name: self._role(role, self._held.boot["urls"]) for name, role in fields["roles"].items()}
        endpoint = replace(answering, backend=self.name, labels=labels, **fields)
        self.description |= {"boot": self._held.boot, "restarts": {}}
        if self.terms.keep is not None:
            self._held.keep(self.terms.keep)
            self._is_kept = True
        return endpoint

    def _write_run_metrics(self, address: str) -> None:
        """Writes the host and port of the run's metrics for services that read them, such as Prometheus. They may be empty."""
        assert self._held is not None
        targets = [{"targets": [address]}] if address else []
        with suppress(OSError):  # A stack that is being stopped removes its folder.
            write_whole(self._held.home / "run" / RUN_METRICS, json.dumps(targets))

    def _labels(self, run_dir: Path) -> Json:
        """Returns the key `labels` of the YAML, with {run_dir} in the path `trace` replaced by the folder of the boot."""
        labels = self.spec.labels.of_endpoint()
        return {**labels, "trace": expand(labels["trace"], {"run_dir": str(run_dir)}, "labels.trace")} if "trace" in labels else labels

    def _role(self, role: Json, urls: Json) -> Json:
        """Returns the settings of a role (a further model that agents call). The URL of a service replaces the key `service`."""
        service = role.pop("service", None)
        return role if service is None else {**role, "url": f"{urls[service]}{self.spec.path}"}

    def metrics(self) -> Sources:
        assert self._held is not None
        leased = [gpu for ids in self._held.boot.get("gpus", {}).values() for gpu in ids]
        return Sources(self._held.metrics, tuple(gpus.find(leased)), self.spec.sample_every)

    def watch(self, tell: Tell) -> str | None:
        """Blocks until the stack dies or is stopped, and reports restarts of services to the session.

        The stack daemon decides about restarts: it restarts a service as often as the YAML allows.
        """
        assert self._held is not None

        def on_restart(message: ServicesRestarting) -> None:
            self.description["restarts"] = message.restarts
            tell(message.services)
            self._is_unavailable = bool(message.services)

        return self._held.death(on_restart) or None

    def look(self) -> str:
        """If nothing listens at the stack's URL, waits until the session knows which part is unavailable, for up to NOTICE_TIMEOUT seconds.

        The daemon notices the death of a service with a delay, and this process the death of the daemon. Without the wait, an attempt that
        began in between would not count as interrupted.
        """
        end = time.monotonic() + NOTICE_TIMEOUT
        url = self._answering.url if self._answering else ""
        while not (self._is_unavailable or self._stopped.is_set() or time.monotonic() > end or _listens(url)):
            time.sleep(0.02)
        return ""

    def missing_workers(self, arm: str) -> str:
        """Counts Dynamo's workers, unless services are being restarted: then the stack daemon counts them before they serve again."""
        del arm
        return "" if self._is_unavailable or not self._answering else missing_workers(self._answering, self.spec.ready.workers)

    def boot_again(self, tell: Tell) -> Endpoint | None:
        """Boots the stack again if its daemon has died. Returns the new endpoint, whose port may differ, or None if it was not booted."""
        assert self._held is not None
        if not self._held.is_orphaned or self._stopped.is_set() or not tell([STACK_DAEMON]):
            return None
        self._is_unavailable = True
        self._held.stop()  # Ends the services that the dead stack daemon has left.
        began = time.monotonic()
        try:
            return self.start(self._directory)
        except BackendError as error:
            seconds = f"{time.monotonic() - began:.0f} s (ready.timeout: {self.spec.ready.timeout:g} s)"
            raise BackendError(f"the stack was booted again, and did not serve after {seconds}: {error}") from error

    def stop(self) -> None:
        """Stops the stack. If it is kept for later sessions, only closes the connection to its daemon."""
        self._stopped.set()
        if self._held is None:
            return
        if self._is_kept:
            self._write_run_metrics("")
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
    """The validated YAML of a backend of `kind: stack`: services on this machine that are started for a session."""

    def make(self, terms: SessionTerms) -> Stacked:
        return Stacked(self, terms)

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        """Returns the keys of the YAML, with its base, the services of included files, and its folder as `here`."""
        return {**with_table_beside(with_base(data, file), file), "here": str(file.parent.absolute())}

    def refuse_mistakes(self, written: Json) -> None:
        from pytest_agentbench.backends.stack.instances import refuse_mistakes

        refuse_unused_settings(written, self.model_dump())
        refuse_mistakes(self)

    def submissions(self) -> Iterator[tuple[str, str]]:
        from pytest_agentbench.backends.stack.instances import submissions

        yield from submissions(self, Path("reports", "RUN", "backend").absolute()).items()

    def checks(self, *, reach: bool) -> Iterator[Check]:
        from pytest_agentbench.backends.doctor.host import stack_checks

        del reach
        return stack_checks(self)
