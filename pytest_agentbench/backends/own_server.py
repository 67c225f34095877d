"""A backend whose server is one child process of the session, on 127.0.0.1."""

from __future__ import annotations

import os
import socket
import threading
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.machine.ports import shared_port
from pytest_agentbench.backends.ready import listed_models
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.process import Child, start_again
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Endpoint, Json

#: Importing aiohttp reads the certificates of this machine twice, which takes 0.125 s of CPU. These servers make no requests.
NO_CERTIFICATES = {"SSL_CERT_FILE": os.devnull}


class OwnServer(Backend):
    """A backend that runs a server of this package in a child process, and restarts it on the same port if it dies.

    Subclasses set `part` (name of the process) and `module` (what `python -m` runs), and define `endpoint` and `server_settings`.
    """

    part: str  # name of the process in a session, and of its log
    module: str  # what `python -m` runs
    fixed_port: int  # port of the YAML; 0 selects a free port

    def __init__(self) -> None:
        self.child: Child | None = None
        self.port = 0
        self._reserved: socket.socket | None = None  # Reserves a port that the YAML does not fix, also while the server restarts
        self._log = Path()
        self._starting = threading.Lock()
        self._stopped = False

    @abstractmethod
    def endpoint(self, url: str) -> Endpoint:
        """Returns the endpoint of the server at this base URL."""

    @abstractmethod
    def server_settings(self) -> Json:
        """Returns the settings of the process, without host and port."""

    def start(self, directory: Path) -> Endpoint:
        self._log = directory / f"{self.part}.log"
        if not self.fixed_port:
            self._reserved = shared_port()
        self.port = self._reserved.getsockname()[1] if self._reserved else self.fixed_port
        child = self._start_server()
        if child is None:
            raise BackendError(f"the backend was stopped before its {self.part} started")
        child.ready(Listening)
        endpoint = self.endpoint(f"http://127.0.0.1:{self.port}/v1")
        self.models = listed_models(endpoint)
        return endpoint

    def _start_server(self) -> Child | None:
        """Starts a server on the port of this backend. Returns None if the backend was stopped."""
        where = {"host": "127.0.0.1", "port": self.port, "held": self._reserved is not None}
        with self._starting:
            if self._stopped:
                return None
            self.child = Child(self.module, {**self.server_settings(), **where}, self._log, variables=NO_CERTIFICATES)
            return self.child

    @property
    def processes(self) -> Mapping[str, Child]:
        return {self.part: self.child} if self.child is not None else {}

    def watch(self, tell: Tell) -> str | None:
        """Restarts the server on the same port whenever it dies, until the session allows no more restarts."""
        assert self.child is not None
        while True:
            child = self.child
            child.process.wait()
            if self._stopped:
                break
            died = child.exit_message("died in the middle of the run")
            child.close_pipes()
            if not tell([self.part]):
                return died
            try:
                if start_again(self._start_server, Listening) is None:
                    break
            except BackendError as error:
                return None if self._stopped else f"{died}\nand was not started again: {error}"
            tell([])
        return None

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
        if self.child is not None:
            self.child.stop()
        if self._reserved is not None:
            self._reserved.close()
