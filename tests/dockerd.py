"""A Docker Engine for tests: that of the machine, or one that the tests start if they run as root and dockerd is installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

START, END = 60, 30  # seconds that dockerd may take


class NoEngine(Exception):
    """No Docker Engine is available; the message says why."""


class OwnEngine:
    """A dockerd with its own folder, which changes neither the firewall nor the machine's own engine."""

    def __init__(self, *options: str, bridge: str = "none") -> None:
        if os.geteuid() or not shutil.which("dockerd"):
            raise NoEngine("no Docker Engine answers here, and to start one takes root and dockerd (Debian: docker.io)")
        self.folder = Path(tempfile.mkdtemp(prefix="dockerd-"))  # A socket's path has to be short.
        self.url = f"unix://{self.folder}/socket"
        self._options = ["--iptables=false", "--ip6tables=false", f"--bridge={bridge}", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = [*self._options, "--host", self.url]
        folders = [f"--{name}={self.folder / name}" for name in ("data-root", "exec-root", "pidfile")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["dockerd", *options, *folders], stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START
        while not answers(self.url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "log").read_text(errors="replace").splitlines()[-3:]
                self.end()
                raise NoEngine("dockerd does not start here: " + " | ".join(tail))
            time.sleep(0.1)

    def kill(self) -> None:
        """Kills the engine; its containers keep running. Removes files of its containerd that would delay the next engine."""
        self.end(signal.SIGKILL)
        for left in (self.folder / "exec-root" / "containerd").glob("containerd*.*[!l]"):
            left.unlink()  # This removes its pid file and its sockets.

    def end(self, signum: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(signum)
        try:
            self._process.wait(END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        """Removes the engine's folder, and mounts that a killed engine has left there."""
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([each for each in mounts if each.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self.folder)


@contextmanager
def own_engine() -> Iterator[OwnEngine]:
    """Yields a dockerd that the tests have started. Raises NoEngine if none can be started."""
    engine = OwnEngine()
    try:
        engine.start()
        try:
            yield engine
        finally:
            engine.end()
    finally:
        engine.remove()


@contextmanager
def any_engine() -> Iterator[str]:
    """Yields the value of DOCKER_HOST for an engine that answers."""
    url = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if answers(url):
        yield url
        return
    with own_engine() as engine:
        yield engine.url


def answers(url: str) -> bool:
    """Returns whether an engine answers. Does not use the docker package, whose client leaves a socket open if there is no engine."""
    with socket.socket(socket.AF_UNIX) as asking, suppress(OSError):
        asking.settimeout(5)
        asking.connect(urlsplit(url).path)
        asking.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b" 200 " in asking.recv(100)
    return False
