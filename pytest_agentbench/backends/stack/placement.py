"""Services that a cluster runs on other machines: their interface, the time in its queue, and mistakes in their keys."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_agentbench.backends.stack.spec import ServiceSpec, StackSpec, references
from pytest_agentbench.errors import ConfigError

LOST = -1  # exit code of an instance that its cluster has forgotten, or that something else has deleted
POLL = 1.0  # seconds between two looks at an instance


class PlacedUnit(ABC):
    """One instance of a service that a cluster runs. It has the methods of a `ServiceUnit`, and those that other machines need.

    `start` submits it and returns at once. From then on `waits` says why it does not run yet. When it returns an empty string, the instance
    runs at `host`, or has ended. It can be started once. All methods may be called from any thread.
    """

    log: Path
    command: str  # for messages, without secrets
    host: str = ""  # address of its first host; empty until it runs, or if it is reached in another way
    id: str = ""  # what the cluster calls it, such as `job 17`; empty until it has started
    hosts: tuple[str, ...] = ()  # names of its hosts, for the facts of the boot

    @abstractmethod
    def text(self) -> str:
        """Returns what `start` submits: a job script or a manifest."""

    @abstractmethod
    def start(self) -> None:
        """Submits the instance. Raises BackendError if the cluster refuses it."""

    @abstractmethod
    def waits(self) -> str:
        """Returns why the instance does not run yet, such as `PENDING (Resources)`, or an empty string."""

    def problem(self) -> str:
        """Returns why the instance is not ready, as far as the cluster knows, or an empty string."""
        return ""

    @abstractmethod
    def exit_code(self) -> int | None:
        """Returns the exit code, or None while the instance waits or runs."""

    @abstractmethod
    def wait(self) -> int:
        """Blocks until the instance has ended, and returns the exit code."""

    @abstractmethod
    def stop(self, grace: float) -> None:
        """Ends the instance and returns when it has ended. May be called twice, or without a start.

        Raises BackendError if the cluster does not answer, or does not end the instance.
        """

    @abstractmethod
    def logs(self) -> list[Path]:
        """Returns the files of its logs that exist."""

    def health(self) -> str | None:
        """Returns None, because the stack's own checks decide when the service is ready."""
        return None


class BootClock:
    """A clock that stands still while a service waits for machines, so that `ready.timeout` counts from the start of jobs. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = 0  # number of instances that wait
        self._since = 0.0  # when the first of them began to wait
        self._waited = 0.0  # seconds of earlier waits

    def waited(self) -> float:
        """Returns the seconds during which at least one instance waited."""
        with self._lock:
            return self._waited + (self._clock() - self._since if self._waiting else 0.0)

    def now(self) -> float:
        """Returns the time without the seconds of `waited`."""
        return self._clock() - self.waited()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the clock during the block. Blocks of several threads may overlap."""
        with self._lock:
            self._since = self._since if self._waiting else self._clock()
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                self._waited += 0.0 if self._waiting else self._clock() - self._since


def refuse_misplaced(spec: StackSpec) -> None:
    """Raises ConfigError if a service has keys or templates that contradict the place where it runs."""
    for name, service in spec.services.items():
        for mistake in _mistakes(spec, name, service) if service.is_placed else ():
            raise ConfigError(f"services.{name}: {mistake}")


def _mistakes(spec: StackSpec, name: str, service: ServiceSpec) -> Iterator[str]:
    if service.on is not None and (service.image or service.kubernetes):
        yield f"has `on` and `{'image' if service.image else 'kubernetes'}`; hosts of Slurm run a command, so remove one"
    if service.kubernetes is not None and (service.run or service.image):
        yield f"has `kubernetes` and `{'run' if service.run else 'image'}`; the manifest says what runs, so remove one"
    if service.gpus:
        yield "`gpus` leases GPUs of this machine, and the service runs elsewhere; " + (
            "use `on: {slurm: {gpus: N}}`" if service.on else "request them in the manifest"
        )
    if service.kubernetes is not None and service.replicas > 1:
        yield "`replicas` has no effect on a manifest; set the number there"
    if service.kubernetes is not None and (service.port or service.ports):
        yield "`port` and `ports` have no effect on a manifest; remove them, and write the port in `kubernetes.url`"
    yield from _wrong_addresses(spec, name, service)


def _wrong_addresses(spec: StackSpec, name: str, service: ServiceSpec) -> Iterator[str]:
    called = [word for word, is_called in _calls(spec, name, service).items() if is_called]
    if service.on is not None and (unset := [port for port, number in service.ports.items() if not number]):
        yield f"a free port of this machine may be taken on other hosts; give `ports` as numbers, such as `ports: {{{unset[0]}: 9090}}`"
    if service.on is not None and called and not service.port:
        yield f"it needs a fixed `port`, because of {called[0]}: a free port of this machine may be taken on other hosts"
    if service.kubernetes is not None and called and service.kubernetes.url is None:
        yield f"`kubernetes` needs `url`, because of {called[0]}"
    local = {other for other, each in spec.services.items() if not each.is_placed}
    for reference in sorted(references(service)):
        other, _, what = reference.partition(".")
        if other in local and what in ("url", "urls", "host"):
            yield (
                f"{{{reference}}} is an address of this machine's loopback interface, which other hosts do not reach; "
                f"run {other} on other machines, too, or write an address that they reach"
            )


def _calls(spec: StackSpec, name: str, service: ServiceSpec) -> dict[str, bool]:
    """Returns what uses the main port of a service -> whether it does."""
    main = ("port", "url", "urls")
    return {
        "`ready`": service.ready is not None and service.ready.port == "port",
        "`metrics`": service.metrics is not None and service.metrics.port == "port",
        "{port}": "port" in references(service),
        "`endpoint`": spec.front == name,
        "the roles": any(role.service == name for role in spec.roles.values()),
        "the templates of other services": any(f"{name}.{what}" in references(other) for other in spec.services.values() for what in main),
    }
