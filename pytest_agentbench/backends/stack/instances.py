"""The instances of a stack's services (processes and containers), and the ports, GPUs and images that they need.

`Claims` reserves ports and GPUs until they are returned. `Factory` expands the templates of the YAML for each instance.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pytest_agentbench.backends.machine.gpus import Lease, lease, wait_released
from pytest_agentbench.backends.machine.ports import Reserved, holder, is_free
from pytest_agentbench.backends.machine.versions import program_of
from pytest_agentbench.backends.stack.docker_engine import fetch
from pytest_agentbench.backends.stack.kubernetes_service import KubernetesService
from pytest_agentbench.backends.stack.ownership import LABEL
from pytest_agentbench.backends.stack.placement import PlacedUnit, refuse_misplaced
from pytest_agentbench.backends.stack.placement_spec import ManifestSpec, expand_manifest
from pytest_agentbench.backends.stack.service_process import ServiceProcess, environment
from pytest_agentbench.backends.stack.slurm_service import LEADER, RANK, SlurmService, job_environment
from pytest_agentbench.backends.stack.spec import (
    HttpCheck,
    ServiceSpec,
    StackSpec,
    dependencies,
    single_texts,
    words,
)
from pytest_agentbench.backends.stack.surroundings import NO_REPORTS
from pytest_agentbench.backends.stack.templates import expand, expand_words
from pytest_agentbench.errors import BackendError, ConfigError, MissingError

RELEASE_TIMEOUT = 120.0  # seconds to wait for free GPU memory after the last service has ended
PORTS_TIMEOUT = 5.0  # seconds to wait until all ports are free; a port that is not is used by another program

WriteLog = Callable[[str], None]


class Claims:
    """The ports and GPUs that one boot of a stack has reserved. `give_back` ends the reservation when the services have ended."""

    def __init__(self, log: WriteLog) -> None:
        self._log = log
        self._reserved = Reserved()
        self._lease = Lease()

    def port(self) -> int:
        """Reserves a free port and returns it. `let_go` releases it when its service starts."""
        return self._reserved.take()

    def let_go(self, ports: Iterable[int]) -> None:
        """Releases reserved ports, so that the service that needs them can be started."""
        for port in ports:
            self._reserved.let_go(port)

    def lease_gpus(self, spec: StackSpec, instances: Sequence[Instance], wait_s: float, on_wait: WriteLog) -> None:
        """Leases the GPUs of all services together, and distributes them. Raises MissingError if they do not become free in time."""
        count, named = spec.gpus
        if not count and not named:
            return
        self._lease = lease(count, wait_s, on_wait, named=named, stack=spec.name)
        share_out(instances, self._lease.ids[len(named) :])
        self._log(f"leased GPUs: {', '.join(self._lease.ids)}")

    def give_back(self, started: Iterable[Instance]) -> None:
        """Waits until the ports of the instances and the memory of the GPUs are free, and ends the lease of the GPUs.

        Logs the ports and GPUs that do not become free in time.
        """
        self._reserved.close()
        end = time.monotonic() + PORTS_TIMEOUT
        for port in sorted({port for each in started if not each.spec.is_placed for port in each.ports.values()}):
            self._wait_for(port, end)
        if gpus := self._lease.gpus:
            left = wait_released(gpus, [], RELEASE_TIMEOUT)
            self._log(f"GPUs {', '.join(self._lease.ids)}: {f'after {RELEASE_TIMEOUT:g} s: {left}' if left else 'memory is free'}")
        self._lease.release()

    def _wait_for(self, port: int, end: float) -> None:
        """Waits until a port is free, at most until `end` (time.monotonic()), and logs if it is not.

        All services have ended by then, so a port that stays in use belongs to another program.
        """
        while not is_free(port):
            if time.monotonic() > end:
                self._log(f"port {port} is still in use by {holder(port)}")
                return
            time.sleep(0.05)


def refuse_taken(instances: Iterable[Instance]) -> None:
    """Raises BackendError if another program uses a port that the YAML sets."""
    for each in (each for each in instances if not each.spec.is_placed):
        for port in {each.spec.port, *each.spec.ports.values()} - {0}:
            if not is_free(port):
                raise BackendError(f"{each.name} needs port {port}, which is used by {holder(port)}; end it, or set another port")


def fetch_images(factory: Factory, instances: Iterable[Instance], on_wait: WriteLog) -> None:
    """Pulls the images that are not on this machine.

    This is done before GPUs are leased and before `ready.timeout` begins, because it may take half an hour.
    """
    pulls = {factory.image(each): each.spec.container.pull for each in instances if each.spec.image is not None}
    for image, pull in pulls.items():
        fetch(image, pull, on_wait)


class ServiceUnit(Protocol):
    """The interface of what runs one instance: `ServiceProcess`, `Container` or a `PlacedUnit`. It can be started once."""

    log: Path
    command: str  # quoted as for a shell, without secrets

    def start(self) -> None:
        """Starts the process or container. Raises BackendError if it cannot be started."""

    def exit_code(self) -> int | None:
        """Returns the exit code, or None while the process or container runs."""

    def wait(self) -> int:
        """Blocks until the process or container ends, and returns the exit code."""

    def health(self) -> str | None:
        """Returns the result of a container's HEALTHCHECK (`starting`, `healthy` or `unhealthy`), or None if there is none."""

    def stop(self, grace: float) -> None:
        """Ends the process or container: SIGTERM, and SIGKILL after `grace` seconds. May be called twice, or without a start."""


HOST = "127.0.0.1"
PACKAGE = "pytest_agentbench."  # prefix of the modules of this package in a command


@dataclass
class Instance:
    """One replica of a service of a stack, with its ports and GPUs, and its process or container when it runs."""

    service: str
    replica: int
    spec: ServiceSpec
    ports: dict[str, int]  # name -> number; the main port is called `port`
    log: Path
    gpus: list[str] = field(default_factory=list)
    running: ServiceUnit | None = None
    restarts: int = 0  # number of restarts so far
    base: str | None = None  # URL of a service in Kubernetes, empty if it has none; None for other services
    host: str = HOST  # address of the machine; empty if that is not known yet, or if it has none of its own

    @property
    def name(self) -> str:
        """The name of the service. If it has several replicas, the number of the replica is added: `engine-2` is the third one."""
        return self.service if self.spec.replicas == 1 else f"{self.service}-{self.replica}"

    @property
    def url(self) -> str:
        """The URL of its main port, without a path. Empty if it has none."""
        if self.base is not None:
            return self.base
        return f"http://{self.host}:{self.ports['port']}" if "port" in self.ports else ""

    def url_of(self, port: str, path: str) -> str:
        return f"{self.url}{path}" if port == "port" else f"http://{self.host}:{self.ports[port]}{path}"

    @property
    def named_metrics(self) -> str:
        """The URL of its metrics, after `service/replica=`. Empty if it has no metrics, or if their host is not known yet."""
        spec = self.spec.metrics
        known = self.host or (self.base and spec is not None and spec.port == "port")
        return f"{self.service}/{self.replica}={self.url_of(spec.port, spec.path)}" if spec is not None and known else ""


class Factory:
    """Creates the process or container of each instance of a stack, and expands the templates in the YAML's texts for it.

    Templates such as `{engine.port}` may refer to the ports and URLs of all instances.
    """

    def __init__(self, spec: StackSpec, home: Path, instances: Sequence[Instance], *, dry_run: bool = False) -> None:
        """Creates the factory. With `dry_run`, nothing will be started, so missing interpreters and secrets are no errors."""
        self.spec, self.home, self.run_dir, self._dry_run = spec, home, home / "run", dry_run
        self._instances = instances
        self._kubernetes: dict[str, ManifestSpec] = {}  # service -> its key `kubernetes`, without templates
        self._texts = {
            **{name: str(value) for name, value in spec.settings.items()},
            **({"model": spec.model} if spec.model else {}),
            "here": spec.here,
            "home": str(Path.home()),
            "run_dir": str(self.run_dir),
            "logs": str(instances[0].log.parent),
        }

        for each in instances:
            if each.spec.kubernetes is not None:
                self._kubernetes[each.service] = place = each.spec.kubernetes.expanded(self._texts, _where(each))
                each.base = place.url or ""

    def _shared(self) -> dict[str, str]:
        """Returns the values of the templates that all services know. Those of hosts are known when their services run."""
        values = dict(self._texts)
        for each in reversed(self._instances):  # The first replica is last, so that its port and URL count.
            values |= _ports(f"{each.service}.", each.ports) | {f"{each.service}.url": each.url, f"{each.service}.host": each.host}
        for name in self.spec.services:
            values[f"{name}.urls"] = ",".join(each.url for each in self._instances if each.service == name)
        values["metrics"] = ",".join(filter(None, (each.named_metrics for each in self._instances)))
        return values

    def make(self, instance: Instance) -> ServiceUnit:
        """Returns the process or container of an instance, not started yet.

        Raises ConfigError for an unknown template, and MissingError for a missing interpreter or secret.
        """
        python = self._python(instance)
        values, where = self._values(instance, python), _where(instance)
        command = self.command(instance, python)
        own = {name: expand(value, values, where) for name, value in {**self._path(instance), **self.spec.env, **instance.spec.env}.items()}
        own |= self._secrets(instance)
        if instance.spec.image is not None:
            return self._container(instance, command, {**NO_REPORTS, **own}, values, where)
        if instance.spec.on is not None:
            return self._slurm_job(instance, command, own, python)
        if instance.spec.kubernetes is not None:
            return self._objects(instance, values)
        own |= {"CUDA_VISIBLE_DEVICES": ",".join(instance.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        cwd = Path(self.spec.here, expand(instance.spec.cwd, values, where)) if instance.spec.cwd else self.run_dir
        return ServiceProcess(command, environment(own, self.run_dir, python.parent if python else None), cwd, instance.log)

    def command(self, instance: Instance, python: Path | None = None) -> list[str]:
        """Returns the words of the instance's command, with templates expanded. Raises ConfigError for an unknown template."""
        return expand_words(instance.spec.run, self._values(instance, python), _where(instance))

    def check_texts(self, instance: Instance) -> None:
        """Checks the templates in all texts of an instance. Raises ConfigError if one is unknown."""
        known = self._values(instance, None).keys() | {"python"}
        expand_words(words(instance.spec), dict.fromkeys(known, ""), _where(instance))
        for text in (*single_texts(instance.spec), *self.spec.env.values(), *filter(None, [self.spec.python])):
            expand(text, dict.fromkeys(known, ""), _where(instance))
        if instance.spec.kubernetes is not None:
            self._objects(instance, dict.fromkeys(known, "x"))

    def check(self, instance: Instance) -> None:
        """Checks the templates, interpreter and secrets of an instance before anything is started.

        Raises ConfigError for an unknown template, and MissingError for a missing interpreter or secret.
        """
        self.check_texts(instance)
        self._python(instance)
        self._secrets(instance)

    def program(self, instance: Instance) -> Path | None:
        """Returns the path of the program that the instance starts, or None if it is unknown or the instance is a container."""
        return None if instance.spec.image is not None else program_of(instance.spec.run, self._python(instance))

    def image(self, instance: Instance) -> str:
        """Returns the name of the image of an instance that is a container."""
        assert instance.spec.image is not None
        return expand(instance.spec.image, self._values(instance, None), _where(instance))

    def ready_check(self, instance: Instance) -> HttpCheck | None:
        """Returns the check in the YAML that decides when an instance is ready, with templates expanded, or None if there is none.

        In its regular expression, the values of templates are escaped.
        """
        if (check := instance.spec.ready) is None:
            return None
        values, where = self._values(instance, None), _where(instance)
        literal = {name: re.escape(value) for name, value in values.items()}
        return check.model_copy(update={"http": expand(check.http, values, where), "says": expand(check.says, literal, where)})

    def _values(self, instance: Instance, python: Path | None) -> dict[str, str]:
        own = {"replica": str(instance.replica), **_ports("", instance.ports), **({"python": str(python)} if python else {})}
        if instance.spec.on is not None:
            placement = instance.spec.on.slurm
            return {**self._shared(), **own, "gpus": str(placement.gpus), "hosts": str(placement.hosts), "leader": LEADER, "rank": RANK}
        return {**self._shared(), **own, "gpus": str(len(instance.gpus)), "gpu_list": ",".join(instance.gpus)}

    def _python(self, instance: Instance) -> Path | None:
        python = instance.spec.python or self.spec.python
        if python is None or instance.spec.image is not None:
            return None
        from pytest_agentbench.backends.machine.virtual_environments import resolve_python

        name = expand(python, self._values(instance, None), _where(instance))
        try:
            return resolve_python(name, Path(self.spec.here))
        except MissingError:
            if not self._dry_run:
                raise
            return Path("/environment-that-does-not-exist", name.strip("/"), "bin", "python")

    def _path(self, instance: Instance) -> dict[str, str]:
        """Returns {PYTHONPATH: folder} if the instance runs a module of this package in another environment, else an empty dictionary."""
        from pytest_agentbench.backends.machine.virtual_environments import OWN, package_path

        spec = instance.spec
        foreign = spec.image is None and (spec.python or self.spec.python) not in (None, OWN)
        return {"PYTHONPATH": str(package_path())} if foreign and any(word.startswith(PACKAGE) for word in spec.run) else {}

    def _secrets(self, instance: Instance) -> dict[str, str]:
        if self._dry_run:
            return {}
        for name in instance.spec.secrets:
            if not os.environ.get(name):
                raise MissingError(f"services.{instance.service} needs the environment variable {name}, which is not set")
        return {name: os.environ[name] for name in instance.spec.secrets}

    def _objects(self, instance: Instance, values: Mapping[str, str]) -> PlacedUnit:
        place = self._kubernetes[instance.service]
        text = expand_manifest(Path(self.spec.here, place.manifest), values, _where(instance))
        return KubernetesService(instance.name, text, str(Path(self.spec.here, place.manifest)), place, instance.log, self.home)

    def _slurm_job(self, instance: Instance, command: list[str], own: Mapping[str, str], python: Path | None) -> PlacedUnit:
        assert instance.spec.on is not None
        secret = {*instance.spec.secrets}
        env = {**job_environment(python.parent if python else None), **{name: value for name, value in own.items() if name not in secret}}
        cwd = Path(self.spec.here, expand(instance.spec.cwd or "", self._values(instance, python), _where(instance)))
        return SlurmService(instance.name, command, env, str(cwd), instance.spec.on.slurm, instance.log, self.home)

    def _container(
        self, instance: Instance, command: list[str], env: Mapping[str, str], values: Mapping[str, str], where: str
    ) -> ServiceUnit:
        from pytest_agentbench.backends.stack.container import Container

        options = instance.spec.container
        mounts = {expand(host, values, where): expand(inside, values, where) for host, inside in options.mounts.items()}
        entrypoint = expand_words(options.entrypoint, values, where) if options.entrypoint else None
        return Container(
            f"agentbench-{self.home.name}-{instance.name}",
            self.image(instance),
            command,
            options.model_copy(update={"mounts": mounts, "entrypoint": entrypoint}),
            env,
            {LABEL: str(self.home)},
            instance.gpus,
            instance.log,
        )


def instances_of(spec: StackSpec, logs: Path, take: Callable[[], int]) -> list[Instance]:
    """Creates an instance for each replica of each service. `take` is called for each port that the YAML does not set."""
    made = []
    for name, service in spec.services.items():
        for replica in range(service.replicas):
            numbers = {"port": service.port, **service.ports}
            ports = {port: number or take() for port, number in numbers.items() if number or not service.is_placed}
            instance = Instance(name, replica, service, ports, Path(), host="" if service.is_placed else HOST)
            made.append(replace(instance, log=logs / f"{instance.name}{'.rank0' if service.on else ''}.log"))
    return made


def refuse_mistakes(spec: StackSpec) -> None:
    """Raises ConfigError if a stack has an unknown template, services in a circle, or keys that do not fit a cluster."""
    dependencies(spec)
    refuse_misplaced(spec)
    instances = instances_of(spec, Path(), lambda: 0)
    factory = Factory(spec, Path(), instances)
    for each in instances:
        factory.check_texts(each)
    expand(spec.labels.trace or "", {"run_dir": ""}, "labels.trace")


def submissions(spec: StackSpec, logs: Path) -> dict[str, str]:
    """Returns instance -> what would be submitted for it to a cluster, a job script or a manifest, without submitting it.

    `logs` is the folder that job scripts name for logs. Ports and URLs of services on this machine are not known, so ports are 0.
    """
    instances = instances_of(spec, logs, lambda: 0)
    factory = Factory(spec, Path("dry-run"), instances, dry_run=True)
    units = {each.name: factory.make(each) for each in instances if each.spec.is_placed}
    return {name: unit.text() for name, unit in units.items() if isinstance(unit, PlacedUnit)}


def share_out(instances: Sequence[Instance], gpus: Sequence[str]) -> None:
    """Distributes the leased GPUs among the instances whose `gpus` is a number. Instances that name their GPUs get these."""
    left = list(gpus)
    for each in instances:
        if isinstance(each.spec.gpus, list):
            each.gpus = [str(gpu) for gpu in each.spec.gpus]
        else:
            each.gpus, left = left[: each.spec.gpus], left[each.spec.gpus :]
    if left:
        raise ConfigError(f"{len(left)} GPUs more than the services need were leased: {', '.join(left)}")


def _where(instance: Instance) -> str:
    return f"services.{instance.service}"


def _ports(prefix: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Returns the values of the templates {port} and {port.NAME}. With the prefix `engine.`, they are {engine.port} and so on."""
    return {f"{prefix}port" if name == "port" else f"{prefix}port.{name}": str(port) for name, port in ports.items()}
