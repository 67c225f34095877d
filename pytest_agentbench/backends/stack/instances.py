"""The processes and containers that a stack's services are made of: ports, GPUs and texts filled in; and what they take of the
machine, which are images, ports and GPUs, the latter two until they are given back.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pytest_agentbench.backends.machine.gpus import Lease, lease, wait_released
from pytest_agentbench.backends.machine.ports import Reserved, holder, is_free
from pytest_agentbench.backends.machine.versions import program_of
from pytest_agentbench.backends.stack.docker_engine import fetch
from pytest_agentbench.backends.stack.ownership import LABEL, marked
from pytest_agentbench.backends.stack.spec import HttpCheck, ServiceSpec, StackSpec, dependencies, expand, texts
from pytest_agentbench.backends.stack.surroundings import NO_REPORTS, surroundings
from pytest_agentbench.errors import BackendError, ConfigError, MissingError
from pytest_agentbench.lib.messages import LOG
from pytest_agentbench.lib.process import end_group, foreign_environment

RELEASE_TIMEOUT = 120.0  # seconds that GPU memory gets to be free after the last service ended
PORTS_TIMEOUT = 5.0  # seconds that all ports get; whoever has one then is somebody else

WriteLog = Callable[[str], None]


class Claims:
    """Of one boot."""

    def __init__(self, log: WriteLog) -> None:
        self._log = log
        self._reserved = Reserved()
        self._lease = Lease()

    def port(self) -> int:
        """A free one, kept from others until its service starts."""
        return self._reserved.take()

    def let_go(self, ports: Iterable[int]) -> None:
        """Their service starts now."""
        for port in ports:
            self._reserved.let_go(port)

    def lease_gpus(self, spec: StackSpec, instances: Sequence[Instance], wait_s: float, on_wait: WriteLog) -> None:
        """All that the services want, in one go; raises MissingError where they are not to be had in time."""
        count, named = spec.gpus
        if not count and not named:
            return
        self._lease = lease(count, wait_s, on_wait, named=named, stack=spec.name)
        share_out(instances, self._lease.ids[len(named) :])
        self._log(f"leased GPUs: {', '.join(self._lease.ids)}")

    def give_back(self, started: Iterable[Instance]) -> None:
        """Waits until the ports of those that were started, and the memory of the GPUs, are free; says in the log what is not."""
        self._reserved.close()
        end = time.monotonic() + PORTS_TIMEOUT
        for port in sorted({port for each in started for port in each.ports.values()}):
            self._wait_for(port, end)
        if gpus := self._lease.gpus:
            left = wait_released(gpus, [], RELEASE_TIMEOUT)
            self._log(f"GPUs {', '.join(self._lease.ids)}: {f'after {RELEASE_TIMEOUT:g} s: {left}' if left else 'memory is free'}")
        self._lease.release()

    def _wait_for(self, port: int, end: float) -> None:
        """Nobody of ours lives any more: what is not free soon has found another owner."""
        while not is_free(port):
            if time.monotonic() > end:
                self._log(f"port {port} is still taken, by {holder(port)}")
                return
            time.sleep(0.05)


def refuse_taken(instances: Iterable[Instance]) -> None:
    """Raises BackendError for a port of the YAML's that somebody has."""
    for each in instances:
        for port in {each.spec.port, *each.spec.ports.values()} - {0}:
            if not is_free(port):
                raise BackendError(f"{each.name} wants port {port}, which {holder(port)} has; end it, or give another port")


def fetch_images(factory: Factory, instances: Iterable[Instance], on_wait: WriteLog) -> None:
    """Before the clock of `ready` runs and GPUs are held: an image may take half an hour."""
    pulls = {factory.image(each): each.spec.container.pull for each in instances if each.spec.image is not None}
    for image, pull in pulls.items():
        fetch(image, pull, on_wait)


class ServiceUnit(Protocol):
    """A process or a container; a `ServiceProcess`, a `Container`."""

    log: Path
    command: str  # as a shell would have it; no secrets

    def start(self) -> None:
        """Raises BackendError when it cannot be started at all."""

    def exit_code(self) -> int | None:
        """None while it runs."""

    def wait(self) -> int:
        """Blocks until it ends."""

    def health(self) -> str | None:
        """What it says of itself: `starting`, `healthy` or `unhealthy`; None where it does not."""

    def stop(self, grace: float) -> None:
        """SIGTERM, `grace` seconds, SIGKILL; returns when it is gone. May be called twice, and for one that never started."""


class ServiceProcess:
    """A command in a session of its own."""

    def __init__(self, run: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        """`env` is the whole environment."""
        self.run, self.env, self.cwd, self.log = list(run), dict(env), cwd, log
        self.command = shlex.join(run)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = str(self.cwd / self.run[0]) if "/" in self.run[0] else self.run[0]
        program = shutil.which(command, path=self.env.get("PATH"))
        if program is None:
            raise BackendError(
                f"there is no command {self.run[0]!r} (of `{self.command}`); is its environment the right one? See `python:`"
            )
        try:
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(
                    [program, *self.run[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**self.env, LOG: str(self.log.absolute())},
                    cwd=self.cwd,
                    start_new_session=True,
                )
        except OSError as error:
            raise BackendError(f"`{self.command}` cannot be started: {error.strerror}: {error.filename}") from error

    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    def health(self) -> str | None:
        return None

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait()

    def stop(self, grace: float) -> None:
        """The whole process group; what the leader leaves behind is killed at once."""
        if self._process is not None:
            end_group(self._process, grace)


def environment(own: Mapping[str, str], run_dir: Path, bin_folder: Path | None) -> dict[str, str]:
    """The user's environment for a service: without what belongs to the test run, with the interpreter's commands first.

    What the YAML says (`own`) counts more than what the user has set, and that more than our surroundings; temporary files are ours
    to place. A mark says which stack it is of.
    """
    inherited = foreign_environment()
    if bin_folder is not None:
        inherited["PATH"] = f"{bin_folder}{os.pathsep}{inherited.get('PATH', os.defpath)}"
    inherited.pop("TMPDIR", None)
    return {**surroundings(run_dir, inherited), **inherited, **own, **marked(str(run_dir.parent))}


HOST = "127.0.0.1"
PACKAGE = "pytest_agentbench."  # how the word of a command begins that names a module of ours


@dataclass
class Instance:
    """One replica of a service."""

    service: str
    replica: int
    spec: ServiceSpec
    ports: dict[str, int]  # by name; the main one is `port`
    log: Path
    gpus: list[str] = field(default_factory=list)
    running: ServiceUnit | None = None
    restarts: int = 0  # so far

    @property
    def name(self) -> str:
        """`engine`, or `engine-2` for the third of several."""
        return self.service if self.spec.replicas == 1 else f"{self.service}-{self.replica}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.ports['port']}"

    def url_of(self, port: str, path: str) -> str:
        return f"http://{HOST}:{self.ports[port]}{path}"


class Factory:
    """Makes what an instance runs, from the YAML and from what all instances got."""

    def __init__(self, spec: StackSpec, home: Path, instances: Sequence[Instance]) -> None:
        self.spec, self.home, self.run_dir = spec, home, home / "run"
        self._shared = {
            **{name: str(value) for name, value in spec.settings.items()},
            **({"model": spec.model} if spec.model else {}),
            "here": spec.here,
            "home": str(Path.home()),
            "run_dir": str(self.run_dir),
            "logs": str(instances[0].log.parent),
        }
        for each in reversed(instances):  # the first replica's are written last
            self._shared |= _ports(f"{each.service}.", each.ports) | {f"{each.service}.url": each.url}
        for name in spec.services:
            self._shared[f"{name}.urls"] = ",".join(each.url for each in instances if each.service == name)

    def make(self, instance: Instance) -> ServiceUnit:
        """Raises ConfigError for a template that is not known, MissingError for an interpreter or a secret that is not there."""
        python = self._python(instance)
        values, where = self._values(instance, python), _where(instance)
        command = self.command(instance, python)
        own = {name: expand(value, values, where) for name, value in {**self._path(instance), **self.spec.env, **instance.spec.env}.items()}
        own |= self._secrets(instance)
        if instance.spec.image is not None:
            return self._container(instance, command, {**NO_REPORTS, **own}, values, where)
        own |= {"CUDA_VISIBLE_DEVICES": ",".join(instance.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        cwd = Path(self.spec.here, expand(instance.spec.cwd, values, where)) if instance.spec.cwd else self.run_dir
        return ServiceProcess(command, environment(own, self.run_dir, python.parent if python else None), cwd, instance.log)

    def command(self, instance: Instance, python: Path | None = None) -> list[str]:
        """The words of its command; raises ConfigError for a template that is not known."""
        return [expand(word, self._values(instance, python), _where(instance)) for word in instance.spec.run]

    def check_texts(self, instance: Instance) -> None:
        """Raises ConfigError for a template that is not known."""
        known = self._values(instance, None).keys() | {"python"}
        for text in (*texts(instance.spec), *self.spec.env.values(), *filter(None, [self.spec.python])):
            expand(text, dict.fromkeys(known, ""), _where(instance))

    def check(self, instance: Instance) -> None:
        """Everything that can be wrong with an instance before anything is started."""
        self.check_texts(instance)
        self._python(instance)
        self._secrets(instance)

    def program(self, instance: Instance) -> Path | None:
        """What a process of it starts, where that is known; None of a container."""
        return None if instance.spec.image is not None else program_of(instance.spec.run, self._python(instance))

    def image(self, instance: Instance) -> str:
        """The image of a container."""
        assert instance.spec.image is not None
        return expand(instance.spec.image, self._values(instance, None), _where(instance))

    def ready_check(self, instance: Instance) -> HttpCheck | None:
        """When an instance is ready; a value means itself in a regular expression."""
        if (check := instance.spec.ready) is None:
            return None
        values, where = self._values(instance, None), _where(instance)
        literal = {name: re.escape(value) for name, value in values.items()}
        return check.model_copy(update={"http": expand(check.http, values, where), "says": expand(check.says, literal, where)})

    def _values(self, instance: Instance, python: Path | None) -> dict[str, str]:
        own = {"replica": str(instance.replica), "gpus": str(len(instance.gpus)), "gpu_list": ",".join(instance.gpus)}
        return {**self._shared, **_ports("", instance.ports), **own, **({"python": str(python)} if python else {})}

    def _python(self, instance: Instance) -> Path | None:
        python = instance.spec.python or self.spec.python
        if python is None or instance.spec.image is not None:
            return None
        from pytest_agentbench.backends.machine.environments import resolve_python

        return resolve_python(expand(python, self._values(instance, None), _where(instance)), Path(self.spec.here))

    def _path(self, instance: Instance) -> dict[str, str]:
        """Returns the PYTHONPATH of a process that runs a module of this package in another environment."""
        from pytest_agentbench.backends.machine.environments import OWN, package_path

        spec = instance.spec
        foreign = spec.image is None and (spec.python or self.spec.python) not in (None, OWN)
        return {"PYTHONPATH": str(package_path())} if foreign and any(word.startswith(PACKAGE) for word in spec.run) else {}

    def _secrets(self, instance: Instance) -> dict[str, str]:
        for name in instance.spec.secrets:
            if not os.environ.get(name):
                raise MissingError(f"services.{instance.service} wants the environment variable {name}, which is not set")
        return {name: os.environ[name] for name in instance.spec.secrets}

    def _container(
        self, instance: Instance, command: list[str], env: Mapping[str, str], values: Mapping[str, str], where: str
    ) -> ServiceUnit:
        from pytest_agentbench.backends.stack.container import Container

        options = instance.spec.container
        mounts = {expand(host, values, where): expand(inside, values, where) for host, inside in options.mounts.items()}
        entrypoint = [expand(word, values, where) for word in options.entrypoint] if options.entrypoint else None
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
    """All replicas of all services; `take` gives a free port."""
    made = []
    for name, service in spec.services.items():
        for replica in range(service.replicas):
            ports = {port: number or take() for port, number in {"port": service.port, **service.ports}.items()}
            instance = Instance(name, replica, service, ports, Path())
            made.append(replace(instance, log=logs / f"{instance.name}.log"))
    return made


def refuse_mistakes(spec: StackSpec) -> None:
    """Raises ConfigError for what no machine can mend: unknown templates, and services that wait for each other."""
    dependencies(spec)
    instances = instances_of(spec, Path(), lambda: 0)
    factory = Factory(spec, Path(), instances)
    for each in instances:
        factory.check_texts(each)
    expand(spec.labels.trace or "", {"run_dir": ""}, "labels.trace")


def share_out(instances: Sequence[Instance], gpus: Sequence[str]) -> None:
    """Gives leased GPUs to the instances that want a number of them; those that pinned theirs have them."""
    left = list(gpus)
    for each in instances:
        if isinstance(each.spec.gpus, list):
            each.gpus = [str(gpu) for gpu in each.spec.gpus]
        else:
            each.gpus, left = left[: each.spec.gpus], left[each.spec.gpus :]
    if left:
        raise ConfigError(f"{len(left)} GPUs were leased that no service wants")


def _where(instance: Instance) -> str:
    return f"services.{instance.service}"


def _ports(prefix: str, ports: Mapping[str, int]) -> dict[str, str]:
    """{port} and {port.NAME}, or {engine.port} and {engine.port.NAME}."""
    return {f"{prefix}port" if name == "port" else f"{prefix}port.{name}": str(port) for name, port in ports.items()}
