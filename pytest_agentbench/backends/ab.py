"""Several backends under one roof: all are up, or one after the other where the machine has not enough GPUs for all of them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.doctor.host import lacking
from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.errors import AgentbenchError, BackendError, MissingError
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, Json

Make = Callable[[], Backend]


class Arms(Backend):
    """The backends of an A/B session. One that does not start, or dies, is out of it; the others go on."""

    def __init__(self, makers: Mapping[str, Make]) -> None:
        self._makers = makers
        self.backends = {name: make() for name, make in makers.items()}
        first = next(iter(self.backends.values()))
        self.in_sequence = not fit_together([*self.backends.values()])
        self.name = " vs ".join(self.backends)
        self.note = "; ".join(dict.fromkeys(each.note for each in self.backends.values() if each.note))
        self.thresholds = first.thresholds  # one test asks all arms, so there is one set of them
        self.waits = any(each.waits for each in self.backends.values())
        self.load_s: dict[str, float] = {}  # arm -> seconds that its last start took
        self.failures: dict[str, str] = {}  # arm -> why it is not there
        self._gone: Callable[[str, str], None] = lambda _arm, _why: None
        self._endpoints: dict[str, Endpoint] = {}  # of arms that are up
        self._started: set[str] = set()
        self._tell: Tell | None = None  # known when the session watches
        self._away: dict[str, Collection[str]] = {}  # arm -> its parts that are away
        self._over = threading.Event()  # no arm is left, or the session ends
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
        """The hardware, where all arms that were up had the same; all else is of single arms."""
        hardware = [self.backends[name].facts.get("hardware") for name in self.load_s]
        return {"hardware": hardware[0]} if hardware and hardware[0] and all(each == hardware[0] for each in hardware) else {}

    def leave_out(self) -> Sequence[str]:
        for name, backend in self.backends.items():
            if isinstance(spec := getattr(backend, "spec", None), StackSpec) and (checks := lacking(spec)):
                sentences = (f"{check.detail} ({check.fix})" if check.fix else check.detail for check in checks)
                self._failed(name, f"cannot run on this machine: {'; '.join(sentences)}")
        first, left = next(iter(self.backends)), len(self.backends) - len(self.failures)
        if first in self.failures or left < 2:
            why = f"the arms are compared with {first}" if first in self.failures else f"nothing is left to compare {first} with"
            raise MissingError(f"{'; '.join(self.failures.values())}; {why}, so nothing was started")
        self.in_sequence = not fit_together([self.backends[name] for name in self._there])
        return [f"{why}; the other arms run without it" for why in self.failures.values()]

    def start(self, directory: Path) -> Endpoint:
        """Raises BackendError when no arm starts."""
        self._folder = directory
        if self.in_sequence:
            for name in self._there:
                self._boot(name)
                if name in self._endpoints:
                    break
        else:
            booting = [threading.Thread(target=self._boot, args=(name,), name=f"agentbench-arm-{name}") for name in self._there]
            for thread in booting:
                thread.start()
            for thread in booting:
                thread.join()
        if not self._endpoints:
            raise BackendError("; ".join(self.failures.values()))
        return next(self._endpoints[name] for name in self.backends if name in self._endpoints)

    def follow(self, gone: Callable[[str, str], None]) -> None:
        self._gone = gone

    def turn(self, arm: str, endpoint: Endpoint) -> tuple[Endpoint, bool]:
        del endpoint  # of the first arm
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

    def sources(self, arm: str) -> Sources:
        return self.backends[arm].metrics() if arm in self._endpoints else Sources()

    def metrics(self) -> Sources:
        """Of all arms that are up; a service is called ARM.SERVICE."""
        sources_by_arm = {name: self.sources(name) for name in self._endpoints}
        targets = tuple(
            Target(f"{name}.{target.service}", target.replica, target.url, target.ca_file)
            for name, sources in sources_by_arm.items()
            for target in sources.targets
        )
        every = min((sources.every_s for sources in sources_by_arm.values()), default=1.0)
        return Sources(targets, tuple(gpu for sources in sources_by_arm.values() for gpu in sources.gpus), every)

    @property
    def processes(self) -> Mapping[str, Child]:
        """Of arms that are up."""
        return {f"{arm}.{name}": child for arm in [*self._endpoints] for name, child in self.backends[arm].processes.items()}

    def unused(self, arm: str) -> Collection[str]:
        """Processes of the other arms, up or not."""
        return [f"{other}.{name}" for other, backend in self.backends.items() if other != arm for name in backend.processes]

    def watch(self, tell: Tell) -> str | None:
        self._tell = tell
        self._over.wait()
        return None if self._stopped else "; ".join(self.failures.values())

    def look(self) -> str:
        found = ((name, self.backends[name].look()) for name in [*self._endpoints])
        return "; ".join(f"arm {name}: {said}" for name, said in found if said)

    def stop(self) -> None:
        self._stopped = True
        self._over.set()
        stopping = [threading.Thread(target=each.stop, name="agentbench-stop-arm") for each in self.backends.values()]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    @property
    def _there(self) -> list[str]:
        """Arms that nothing speaks against yet."""
        return [name for name in self.backends if name not in self.failures]

    def _boot(self, name: str) -> None:
        """What goes wrong is the arm's failure."""
        if name in self._started:
            self.backends[name] = self._makers[name]()  # a backend is started once
        self._started.add(name)
        backend, began = self.backends[name], time.monotonic()
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        try:
            endpoint = backend.start(folder)
        except Exception as error:  # a backend may come from a hook
            self._failed(name, f"is not available: {error if isinstance(error, AgentbenchError) else repr(error)}")
            return
        self.load_s[name] = time.monotonic() - began
        self._endpoints[name] = endpoint
        daemon(self._watch, name, backend, name=f"watch-{name}")

    def _watch(self, name: str, backend: Backend) -> None:
        died = backend.watch(functools.partial(self._tells, name))
        if died and not self._stopped and self.backends[name] is backend and self._endpoints.pop(name, None):
            self._failed(name, f"is gone: {died}")
            self._gone(name, self.failures[name])  # first, so that none of its rollouts begins when the others go on
            self._tells(name, ())

    def _tells(self, arm: str, names: Collection[str]) -> bool:
        """Of all arms together."""
        self._away[arm] = [*names]
        return self._tell is None or self._tell([f"{each}.{name}" for each, away in self._away.items() for name in away])

    def _failed(self, name: str, why: str) -> None:
        self.failures[name] = f"arm {name}: the backend {self.backends[name].name!r} {why}"
        if self.failures.keys() == self.backends.keys():
            self._over.set()


def fit_together(backends: list[Backend]) -> bool:
    """Whether stacks can be up at once: their GPUs are there for all of them, none is named twice, and no port is fixed twice."""
    specs = [spec for each in backends if isinstance(spec := getattr(each, "spec", None), StackSpec)]
    requests = [spec.gpus for spec in specs]
    count = sum(any_kind + len(named) for any_kind, named in requests)
    named = [gpu for _, each in requests for gpu in each]
    ports = [port for spec in specs for service in spec.services.values() for port in (service.port, *service.ports.values()) if port]
    if len(set(named)) < len(named) or len(set(ports)) < len(ports):
        return False
    return not count or count <= len(gpus.visible())
