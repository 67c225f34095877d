"""The taps of one session as the controller holds them: one port for agents, which stays theirs when one of them dies."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

from pytest_agentbench.backends.machine.ports import shared_port
from pytest_agentbench.lib.process import Child, start_again
from pytest_agentbench.tap.clock import stamps_wanted
from pytest_agentbench.tap.protocol import Budgets, TapConfig, TapListening, TapPorts


class TapProcesses:
    """The tap processes of one session. They are started at once, and `ready` waits until they serve.

    The port for agents is reserved until `stop`, so each tap that is started later listens there again. Control ports change.
    """

    def __init__(self, processes: int, budgets: Budgets, logs: Path) -> None:
        self._reserved = shared_port()
        stamps_wanted(self._reserved)  # so that the kernel goes on stamping while no tap is there to want it
        self._config = TapConfig(secrets.token_urlsafe(16), budgets, self._reserved.getsockname()[1])
        self._logs = logs
        self.children = {name: self._start(name) for name in _names(processes)}
        self._ports: dict[str, TapListening] = {}
        self._starting = threading.Lock()
        self._ended = False

    def ready(self) -> None:
        """Waits until all of them serve; raises BackendError when one does not."""
        for name, child in self.children.items():
            self._ports[name] = child.ready(TapListening)

    @property
    def facts(self) -> TapPorts:
        """What the pool has to know of them."""
        return TapPorts(self._config.port, tuple(each.control_port for each in self._ports.values()), self._config.token)

    def start_again(self, name: str) -> bool:
        """Starts a tap in the place of a dead one; returns False if the session ends. Raises BackendError if it does not serve."""

        def start() -> Child | None:
            with self._starting:
                if self._ended:
                    return None
                child = self.children[name] = self._start(name)
                return child

        if (facts := start_again(start, TapListening)) is None:
            return False
        self._ports[name] = facts
        return True

    def end(self) -> None:
        """No tap is started any more."""
        with self._starting:
            self._ended = True

    def stop(self) -> list[Child]:
        """Ends, lets the port go, and returns the processes that are to be stopped."""
        self.end()
        self._reserved.close()
        return [*self.children.values()]

    def _start(self, name: str) -> Child:
        return Child("pytest_agentbench.tap", self._config, self._logs / f"{name}.log")


def _names(count: int) -> list[str]:
    """tap, tap-2, tap-3, ..."""
    return ["tap", *(f"tap-{number}" for number in range(2, count + 1))]
