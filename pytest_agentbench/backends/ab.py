"""The backend of an A/B session, made of one backend for each arm.

All arms are up at once, or one after the other if the machine has too few GPUs for all of them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.doctor.host import lacking
from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.errors import AgentbenchError, BackendError, MissingError
from pytest_agentbench.lib.process import Child, usable_cores
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, Json

Make = Callable[[], Backend]

CPUS_PER_BOOT = 4  # CPUs of this machine for each stack that boots at the same time; with fewer, stacks boot one after the other


class Arms(Backend):
    """The backend of an A/B session. It contains one backend for each arm (a setting under comparison), and starts and watches them.

    An arm whose backend does not start, or dies, is excluded from the session with a reason in `failures`. The other arms continue.
    """

    def __init__(self, makers: Mapping[str, Make], at_once: int | None = None) -> None:
        """Creates the backend of each arm.

        `at_once` is the number of stacks that boot at the same time. Without it, the number of CPUs decides. Each stack starts several
        processes, and servers that boot beside many others miss their time limits.
        """
        self._makers = makers
        self._boots = threading.Semaphore(at_once or max(1, usable_cores() // CPUS_PER_BOOT))
        self.backends = {name: make() for name, make in makers.items()}
        first = next(iter(self.backends.values()))
        self.in_sequence = not fit_together([*self.backends.values()])
        self.name = " vs ".join(self.backends)
        self.note = "; ".join(dict.fromkeys(each.note for each in self.backends.values() if each.note))
        self.thresholds = first.thresholds  # One test judges all arms, so the session has one set of thresholds.
        self.nodes = first.nodes
        self.waits = any(each.waits for each in self.backends.values())
        self.load_s: dict[str, float] = {}  # arm -> duration of its last start in seconds
        self.failures: dict[str, str] = {}  # arm -> why it is excluded
        self._on_lost: Callable[[str, str], object] = lambda _arm, _why: None
        self._endpoints: dict[str, Endpoint] = {}  # arm that is up -> its endpoint
        self._started: set[str] = set()
        self._tell: Tell | None = None  # Set by `watch`
        self._unavailable: dict[str, Collection[str]] = {}  # arm -> its parts that are being restarted
        self._finished = threading.Event()  # Set when no arm is left, or when the session ends
        self._stopped = False
        self._folder = Path()

    @property
    def description(self) -> Json:  # type: ignore[override]  # a backend may change it while it runs
        return {"kind": "ab", "arms": {name: {"name": each.name, **each.description} for name, each in self.backends.items()}}

    @property
    def status(self) -> str:  # type: ignore[override]
        return "; ".join(f"{name}: {each.status}" for name, each in self.backends.items() if each.status)

    @property
    def stop_note(self) -> str:  # type: ignore[override]
        return "; ".join(each.stop_note for each in self.backends.values() if each.stop_note)

    @property
    def identity(self) -> Json:
        return {name: each.identity for name, each in self.backends.items()}

    @property
    def facts(self) -> Json:
        """Returns the fact `hardware` (GPUs and driver) if all arms that started have the same. Arms may differ in all other facts."""
        hardware = [self.backends[name].facts.get("hardware") for name in self.load_s]
        return {"hardware": hardware[0]} if hardware and hardware[0] and all(each == hardware[0] for each in hardware) else {}

    def leave_out(self) -> Sequence[str]:
        for name, backend in self.backends.items():
            if isinstance(spec := getattr(backend, "spec", None), StackSpec) and (checks := lacking(spec)):
                sentences = (f"{check.detail} ({check.fix})" if check.fix else check.detail for check in checks)
                self._exclude(name, f"cannot run on this machine: {'; '.join(sentences)}")
        first, left = next(iter(self.backends)), len(self.backends) - len(self.failures)
        if first in self.failures or left < 2:
            why = f"the arms are compared with {first}" if first in self.failures else f"nothing is left to compare {first} with"
            raise MissingError(f"{'; '.join(self.failures.values())}; {why}, so nothing was started")
        self.in_sequence = not fit_together([self.backends[name] for name in self._remaining])
        return [f"{why}; the other arms run without it" for why in self.failures.values()]

    def start(self, directory: Path) -> Endpoint:
        """Starts all arms, or the first one that starts if they run in sequence. Raises BackendError if no arm starts."""
        self._folder = directory
        if self.in_sequence:
            for name in self._remaining:
                self._boot(name)
                if name in self._endpoints:
                    break
        else:
            booting = [threading.Thread(target=self._boot_in_turn, args=(name,), name=f"agentbench-arm-{name}") for name in self._remaining]
            for thread in booting:
                thread.start()
            for thread in booting:
                thread.join()
        if not self._endpoints:
            raise BackendError("; ".join(self.failures.values()) or "the session ended before an arm had booted")
        return next(self._endpoints[name] for name in self.backends if name in self._endpoints)

    def follow(self, on_lost: Callable[[str, str], object]) -> None:
        self._on_lost = on_lost

    def turn(self, arm: str, endpoint: Endpoint) -> tuple[Endpoint, bool]:
        del endpoint  # It belongs to the first arm.
        if arm in self.failures:
            raise BackendError(self.failures[arm])
        if arm in self._endpoints:
            return self._endpoints[arm], False
        for other in [*self._endpoints]:
            del self._endpoints[other]
            self.backends[other].stop()
        self._boot(arm)
        if arm not in self._endpoints:
            raise BackendError(self.failures[arm])
        return self._endpoints[arm], True

    def missing_workers(self, arm: str) -> str:
        return self.backends[arm].missing_workers("") if arm in self._endpoints else ""

    def sources(self, arm: str) -> Sources:
        return self.backends[arm].metrics() if arm in self._endpoints else Sources()

    def metrics(self) -> Sources:
        """Returns the metrics URLs and GPUs of all arms that are up. Their services are named ARM.SERVICE."""
        sources_by_arm = {name: self.sources(name) for name in self._endpoints}
        targets = tuple(
            Target(f"{name}.{target.service}", target.replica, target.url, target.ca_file)
            for name, sources in sources_by_arm.items()
            for target in sources.targets
        )
        every = min((sources.every_s for sources in sources_by_arm.values()), default=1.0)
        leased = tuple(gpu for sources in sources_by_arm.values() for gpu in sources.gpus)
        events = tuple(replace(each, arm=name) for name, sources in sources_by_arm.items() for each in sources.kv_events)
        return Sources(targets, leased, every, events)

    @property
    def processes(self) -> Mapping[str, Child]:
        """Returns the child processes of the arms that are up, named ARM.PROCESS."""
        return {f"{arm}.{name}": child for arm in [*self._endpoints] for name, child in self.backends[arm].processes.items()}

    def unused(self, arm: str) -> Collection[str]:
        """Returns the names (ARM.PROCESS) of the processes of all arms but `arm`, whether they are up or not."""
        return [f"{other}.{name}" for other, backend in self.backends.items() if other != arm for name in backend.processes]

    def watch(self, tell: Tell) -> str | None:
        self._tell = tell
        self._finished.wait()
        return None if self._stopped else "; ".join(self.failures.values())

    def look(self) -> str:
        notes = ((name, self.backends[name].look()) for name in [*self._endpoints])
        return "; ".join(f"arm {name}: {note}" for name, note in notes if note)

    def stop(self) -> None:
        self._stopped = True
        self._finished.set()
        stopping = [threading.Thread(target=each.stop, name="agentbench-stop-arm") for each in self.backends.values()]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    @property
    def _remaining(self) -> list[str]:
        """The arms that are not excluded."""
        return [name for name in self.backends if name not in self.failures]

    def _boot_in_turn(self, name: str) -> None:
        """Starts the backend of an arm. A stack waits until few enough others boot. Does nothing if the session has ended meanwhile."""
        if not self.backends[name].waits:  # A server that already runs takes no CPU.
            self._boot(name)
            return
        with self._boots:
            if not self._stopped:
                self._boot(name)

    def _boot(self, name: str) -> None:
        """Starts the backend of an arm. Excludes the arm if that fails."""
        if name in self._started:
            self.backends[name] = self._makers[name]()  # A backend object can be started only once.
        self._started.add(name)
        backend, began = self.backends[name], time.monotonic()
        backend.run_metrics = self.run_metrics
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        try:
            endpoint = backend.start(folder)
        except Exception as error:  # The backend may come from a hook and raise anything.
            self._exclude(name, f"is not available: {error if isinstance(error, AgentbenchError) else repr(error)}")
            return
        self.load_s[name] = time.monotonic() - began
        self._endpoints[name] = endpoint
        daemon(self._watch, name, backend, name=f"watch-{name}")

    def _watch(self, name: str, backend: Backend) -> None:
        died = backend.watch(functools.partial(self._tell_session, name))
        if died and not self._stopped and self.backends[name] is backend and self._endpoints.pop(name, None):
            self._exclude(name, f"is gone: {died}")
            self._on_lost(name, self.failures[name])  # First: no rollout of this arm may start when the others continue.
            self._tell_session(name, ())

    def _tell_session(self, arm: str, names: Collection[str]) -> bool:
        """Tells the session which processes of all arms are being restarted. `names` are the ones of `arm` from now on.

        Returns whether the session allows another restart.
        """
        self._unavailable[arm] = [*names]
        return self._tell is None or self._tell([f"{each}.{name}" for each, names in self._unavailable.items() for name in names])

    def _exclude(self, name: str, why: str) -> None:
        self.failures[name] = f"arm {name}: the backend {self.backends[name].name!r} {why}"
        if self.failures.keys() == self.backends.keys():
            self._finished.set()


def fit_together(backends: list[Backend]) -> bool:
    """Returns whether these backends can be up at once: there are enough GPUs, and no two stacks name the same GPU or fixed port."""
    specs = [spec for each in backends if isinstance(spec := getattr(each, "spec", None), StackSpec)]
    requests = [spec.gpus for spec in specs]
    count = sum(any_kind + len(named) for any_kind, named in requests)
    named = [gpu for _, each in requests for gpu in each]
    ports = [port for spec in specs for service in spec.services.values() for port in (service.port, *service.ports.values()) if port]
    if len(set(named)) < len(named) or len(set(ports)) < len(ports):
        return False
    return not count or count <= len(gpus.visible())
