"""What a stack takes of its machine: images, ports and GPUs; the latter two until it gives them back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from pytest_agentbench.backends.machine.gpus import Lease, lease, wait_released
from pytest_agentbench.backends.machine.ports import Reserved, holder, is_free
from pytest_agentbench.backends.stack.docker_engine import fetch
from pytest_agentbench.backends.stack.instances import Factory, Instance, share_out
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import BackendError

RELEASED = 120.0  # seconds that GPU memory gets to be free after the last service ended
PORTS_FREE = 5.0  # seconds that all ports get; whoever has one then is somebody else

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
        end = time.monotonic() + PORTS_FREE
        for port in sorted({port for each in started for port in each.ports.values()}):
            self._wait_for(port, end)
        if gpus := self._lease.gpus:
            left = wait_released(gpus, [], RELEASED)
            self._log(f"GPUs {', '.join(self._lease.ids)}: {f'after {RELEASED:g} s: {left}' if left else 'memory is free'}")
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
    wanted = {factory.image(each): each.spec.container.pull for each in instances if each.spec.image is not None}
    for image, pull in wanted.items():
        fetch(image, pull, on_wait)
