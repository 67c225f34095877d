"""The boot of a stack. Services start in the order of their dependencies, are checked and watched, and stop in reverse order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_agentbench.backends.machine.gpus import refuse_too_few
from pytest_agentbench.backends.machine.versions import server_facts
from pytest_agentbench.backends.ready import PAUSE, ReadinessChecks, waiting_for, warm_up
from pytest_agentbench.backends.stack.boot_facts import boot_facts, places
from pytest_agentbench.backends.stack.failure_details import log_of, port_conflict, readiness_problem
from pytest_agentbench.backends.stack.instances import (
    Claims,
    Factory,
    Instance,
    ServiceUnit,
    WriteLog,
    fetch_images,
    instances_of,
    refuse_taken,
)
from pytest_agentbench.backends.stack.ownership import kill_marked
from pytest_agentbench.backends.stack.placement import BootClock, PlacedUnit
from pytest_agentbench.backends.stack.spec import StackSpec, dependencies
from pytest_agentbench.backends.stack.surroundings import TMP
from pytest_agentbench.backends.telemetry.samples import Target
from pytest_agentbench.errors import AgentbenchError, BackendError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.foreign import without_styles
from pytest_agentbench.lib.redact import tail
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, Json

QUEUE_PAUSE = 1.0  # seconds between two looks at an instance that waits for machines
DEATH_NOTICE = 0.5  # seconds until the death of a service, which may have caused another failure, is noticed
LOG_LINE = 160  # characters of a log line that `status` shows


class Stack:
    """A stack that is booted once and stopped once, in the process of its daemon.

    `boot` prepares the stack (ports, images, GPUs), starts its services, and returns the endpoint when all readiness checks have passed. A
    thread for each running instance (one replica of a service) waits for its end, and restarts it as often as the YAML allows. If an
    instance ends after that, or if the boot fails, `failed` is set and `failure` has the reason. The first failure counts.

    `boot` and `stop` are called once each. `stop` may be called from any thread at any time, also during the boot.
    """

    def __init__(
        self, spec: StackSpec, home: Path, logs: Path, *, gpu_wait: float, warm_up: int, log: WriteLog, on_restart: Callable[[], None]
    ) -> None:
        """Creates the stack. Nothing is started yet.

        Args:
            spec: The keys of the YAML.
            home: The folder of this stack.
            logs: The folder of the logs of services.
            gpu_wait: Seconds to wait for GPUs that are in use.
            warm_up: Number of requests at the end of the boot, unless the YAML has a number.
            log: Writes a line to the log of the daemon.
            on_restart: Called whenever `restarting` has changed.
        """
        self.spec, self.home, self.logs, self.gpu_wait, self.log = spec, home, logs, gpu_wait, log
        self._on_restart = on_restart
        self.warm_up = warm_up if spec.warm_up is None else spec.warm_up
        self.needs = dependencies(spec)
        self.instances: list[Instance] = []
        self.facts: Json = {}  # facts of the boot
        self.restarting: frozenset[str] = frozenset()  # instances that are being restarted; empty during the boot
        self.failed = threading.Event()
        self.stopping = threading.Event()
        self._fault: AgentbenchError | None = None  # the first failure
        self._waits: dict[str, str] = {}  # instance, `gpus` or `images` -> what the boot is waiting for
        self._ready = {name: threading.Event() for name in spec.services}
        self._booted = False
        self._workers: dict[str, int] = {}  # Dynamo: worker type -> number of workers when the stack was ready
        self._claims = Claims(log)
        self._clock = BootClock()
        self._changing = threading.Lock()  # held while an instance is started or all are stopped
        self._notifying = threading.Lock()  # held while `restarting` changes
        self._watchers: list[threading.Thread] = []

    @property
    def failure(self) -> str:
        """The reason why the stack is unusable, or an empty string."""
        return str(self._fault or "")

    def status(self) -> str:
        """Returns what the boot is waiting for, with the last line of that service's log, or an empty string if it waits for nothing.

        A long line is truncated, because the text has to fit into a line of the terminal.
        """
        doing = dict(self._waits)
        if not doing:
            return ""
        name, what = next(reversed(doing.items()))
        # The log of objects of Kubernetes repeats what is waited for.
        last = next((tail(each.log, 1) for each in self.instances if each.name == name and each.spec.kubernetes is None), [])
        return f"{name}: {what}{f' · {beginning(without_styles(last[0]).strip(), LOG_LINE)}' if last else ''}"

    def boot(self) -> Endpoint:
        """Boots the stack and returns its endpoint, which has passed all readiness checks.

        Raises MissingError if this machine lacks something, and BackendError if the boot fails for another reason.
        """
        started = time.monotonic()
        try:
            self._prepare()
            booting = time.monotonic()
            self.deadline = self._clock.now() + self.spec.ready.timeout
            self._bring_up()
            services = time.monotonic()
            endpoint, proven = self._check_and_warm_up()
            ended = time.monotonic()
        except AgentbenchError as error:
            self._fail(error)
            raise
        finally:
            self._waits.clear()
        self.facts |= {
            "queue_s": round(self._clock.waited(), 3),
            "places": places(self.instances),
            "services_s": round(services - booting, 3),
            "proof_s": round(proven - services, 3),
            "warm_up": {"requests": self.warm_up, "seconds": round(ended - proven, 3)},
            "boot_s": round(ended - started, 3),
        }
        self._booted = True
        self.log(f"ready after {ended - started:.1f} s at {endpoint.url}")
        return endpoint

    def _prepare(self) -> None:
        """Reserves ports, fetches images, leases GPUs, and makes all checks that are possible before a service starts."""
        (self.home / "run" / TMP).mkdir(parents=True, exist_ok=True)
        self.instances = instances_of(self.spec, self.logs, self._claims.port)
        factory = Factory(self.spec, self.home, self.instances)
        for each in self.instances:
            factory.check(each)
        refuse_taken(self.instances)
        refuse_too_few(*self.spec.gpus)
        fetch_images(factory, self.instances, self._noting("images"))
        self._waits.clear()
        requested = time.monotonic()
        self._claims.lease_gpus(self.spec, self.instances, self.gpu_wait, self._noting("gpus"))
        self.facts["waited_for_gpus_s"] = round(time.monotonic() - requested, 3)
        self._waits.clear()
        self._factory = factory
        self.facts |= boot_facts(self.spec, factory, self.instances)
        self.facts["gpus"] = {each.name: each.gpus for each in self.instances if each.gpus}

    def _noting(self, name: str) -> WriteLog:
        """Returns a function that notes for `status` what the boot is waiting for. The function raises an error if the boot has to end.

        `name` is an instance, `gpus` or `images`.
        """

        def note(what: str) -> None:
            self._alive()
            self._waits[name] = what

        return note

    def _bring_up(self) -> None:
        """Starts all services, each as soon as the services that it needs are ready."""
        with ThreadPoolExecutor(len(self.spec.services), "agentbench-bring-up") as threads:
            done = [threads.submit(self._bring_up_one, name) for name in self.spec.services]
        for each in done:
            each.result()
        self._alive()

    def _bring_up_one(self, service: str) -> None:
        mine = [each for each in self.instances if each.service == service]
        try:
            for other in self.needs[service]:
                while not self._ready[other].wait(PAUSE):
                    self._alive()
            for each in mine:
                self._start(each)
            for each in mine:
                self._until_ready(each, self.deadline)
            self._ready[service].set()
        except Exception as error:  # Services that wait for this one must not wait forever.
            self._fail(error if isinstance(error, AgentbenchError) else BackendError(f"{service}: {error!r}"))

    def _start(self, instance: Instance) -> None:
        with self._changing:
            self._alive()
            self._claims.let_go(instance.ports.values())
            running = self._factory.make(instance)
            instance.running = running
            self.log(f"starting {instance.name}: {running.command}")
            running.start()
        self._watchers.append(daemon(self._watch, instance, running, name="watch"))

    def _until_ready(self, instance: Instance, latest: float) -> None:
        """Waits until an instance is ready.

        Raises BackendError after `latest` (a time of the boot's clock), or after the time limit of the instance's own readiness check.
        """
        check = self._factory.ready_check(instance)
        self._waits[instance.name] = f"waiting for {check.http if check else 'its health'}"
        self._until_placed(instance)
        if check is not None and check.timeout is not None:
            latest = min(latest, self._clock.now() + check.timeout)
        while problem := readiness_problem(instance, check):
            self._alive()
            if instance.spec.is_placed:  # Machines may be lost and replaced during a boot.
                self._until_placed(instance)
                self._waits[instance.name] = problem
            if self._clock.now() > latest:
                raise BackendError(f"{instance.name} is not ready in time: {problem}{port_conflict(instance, self.home)}{log_of(instance)}")
            self.stopping.wait(PAUSE)
        self.log(f"{instance.name} is ready: {instance.url_of(check.port, check.http) if check else 'it runs'}")
        self._waits.pop(instance.name, None)

    def _until_placed(self, instance: Instance) -> None:
        """Waits until a cluster has given an instance its machines, if it needs any. The boot's clock stands still meanwhile."""
        unit = instance.running
        if not isinstance(unit, PlacedUnit):
            return
        if unit.waits():
            with self._clock.stopped():
                while reason := unit.waits():
                    self._alive()
                    self._waits[instance.name] = reason
                    self.stopping.wait(QUEUE_PAUSE)
            self.log(f"{instance.name}: {unit.id} runs on {', '.join(unit.hosts) or 'no host any more'}")
        instance.host = unit.host

    def _check_and_warm_up(self) -> tuple[Endpoint, float]:
        """Runs the readiness checks, then the warm-up. Returns the endpoint, and the time (time.monotonic()) of the end of the checks."""
        front, does = self._front, self._noting(self._front.name)
        checks = self._readiness_checks(self.deadline + self._clock.waited(), lambda check, problem: does(waiting_for(check, problem)))
        try:
            # Reversed, so that the URL of the first replica of a service counts
            self.facts["urls"] = {each.service: each.url for each in reversed(self.instances)}
            self.facts["proof"] = codec.plain([*checks.run_checks()])
            if checks.sessions is not None:
                self.facts["sessions"] = codec.plain(checks.sessions)
            self.facts["server"] = server_facts(checks.answering)
            proven = time.monotonic()
            self._workers = checks.workers
            does(f"warming up with {self.warm_up} requests")
            warm_up(checks.answering, self.warm_up, self.spec.ready)
        except BackendError as error:
            self.failed.wait(DEATH_NOTICE)
            self._alive()  # The death of a service is the better reason.
            raise BackendError(f"{error}{log_of(front)}") from error
        return checks.answering, proven

    @property
    def _front(self) -> Instance:
        return next(each for each in self.instances if each.service == self.spec.front)

    def _readiness_checks(self, deadline: float, on_wait: Callable[[str, str], None]) -> ReadinessChecks:
        url, labels = f"{self._front.url}{self.spec.path}", self.spec.labels.of_endpoint()
        endpoint = Endpoint(url, self.spec.model or "", self.spec.name, labels=labels)
        return ReadinessChecks(endpoint, self.spec.ready, deadline, self._alive, on_wait, boots=True, targets=self.metrics())

    def _watch(self, instance: Instance, running: ServiceUnit) -> None:
        code = running.wait()
        if self.stopping.is_set():
            return
        ended = f"{instance.name} ended with exit code {code}: `{running.command}`"
        reason = f"{ended}{port_conflict(instance, self.home)}{log_of(instance, code)}"
        if instance.restarts >= instance.spec.restart:
            self._fail(BackendError(reason))
            return
        instance.restarts += 1
        self.log(f"{reason}\nstarting it again (restart {instance.restarts} of {instance.spec.restart})")
        try:
            self._start_again(instance, running)
        except Exception as error:  # It would be lost in this thread.
            self._fail(BackendError(f"{reason}\nand could not be started again: {error}"))

    def _start_again(self, instance: Instance, dead: ServiceUnit) -> None:
        """Restarts an instance that has died.

        After the boot, this waits until the instance's own readiness check and those of the endpoint have passed. During the boot, it does
        not wait, because the boot does.
        """
        dead.stop(0)
        if not self._booted:
            self._start(instance)
            return
        self._set_restarting(instance, True)
        self._start(instance)
        deadline = self._clock.now() + self.spec.ready.timeout
        self._until_ready(instance, deadline)
        self._readiness_checks(deadline + self._clock.waited(), lambda _check, _problem: None).run_silent_checks(self._workers)
        self.log(f"{instance.name} serves again")
        self._set_restarting(instance, False)

    def _set_restarting(self, instance: Instance, restarting: bool) -> None:
        with self._notifying:
            self.restarting = self.restarting | {instance.name} if restarting else self.restarting - {instance.name}
            self._on_restart()

    def restarts(self) -> dict[str, int]:
        """Returns instance -> number of its restarts, for instances that were restarted."""
        return {each.name: each.restarts for each in self.instances if each.restarts}

    def metrics(self) -> tuple[Target, ...]:
        """Returns the metrics URLs of all instances that have metrics."""
        return tuple(
            Target(each.service, each.replica, each.url_of(spec.port, spec.path))
            for each in self.instances
            if (spec := each.spec.metrics) is not None
        )

    def _alive(self) -> None:
        if self._fault is not None:
            raise type(self._fault)(self.failure) from self._fault
        if self.stopping.is_set():
            raise BackendError("the stack was stopped while it started")

    def _fail(self, fault: AgentbenchError) -> None:
        if self._fault is None and not self.stopping.is_set():
            self._fault = fault
            self.log(self.failure)
            self.failed.set()

    def stop(self) -> None:
        """Stops all services, beginning with the endpoint. Returns when their processes, containers, ports and GPU memory are released."""
        started = time.monotonic()
        self.stopping.set()
        with self._changing:
            for level in self._front_first():
                with ThreadPoolExecutor(len(level), "agentbench-stop") as threads:
                    list(threads.map(self._stop_one, level))
        for watcher in self._watchers:
            watcher.join(5)
        if killed := kill_marked(str(self.home)):
            self.log(f"killed processes that the services left behind: {', '.join(map(str, killed))}")
        self._claims.give_back(each for each in self.instances if each.running is not None)
        self.log(f"stopped in {time.monotonic() - started:.1f} s")

    def _front_first(self) -> Iterable[list[Instance]]:
        """Yields groups of instances in the order in which they are stopped: a service is stopped after all services that need it."""
        left = {each.service for each in self.instances}
        while left:
            free = {name for name in left if not any(name in self.needs[other] for other in left - {name})}
            yield [each for each in self.instances if each.service in free]
            left -= free

    def _stop_one(self, instance: Instance) -> None:
        if (running := instance.running) is None:
            return
        started = time.monotonic()
        ended_before = running.exit_code()
        try:
            running.stop(instance.spec.grace)
        except Exception as error:  # For example a dead Docker Engine. The other services must still be stopped.
            self.log(str(error) if isinstance(error, AgentbenchError) else f"{instance.name} cannot be stopped: {error!r}")
            instance.running = None  # Do not wait for its ports.
            return
        if ended_before is None:
            self.log(f"{instance.name} ended with {running.exit_code()} after {time.monotonic() - started:.1f} s")
