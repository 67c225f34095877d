"""Stacks that are booted as in a session, and requests to their endpoints."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from pytest_agentbench.backends.machine.ports import is_free
from pytest_agentbench.backends.spec import SessionTerms, load_backend
from pytest_agentbench.backends.stack import ownership
from pytest_agentbench.backends.stack.kind import Stacked
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import MissingError
from pytest_agentbench.records import Json

ROOT = Path(__file__).parents[2]
STACKS = "tests/real/stacks"
ANSWER = 120  # seconds that an answer may take
GREETING = 5  # seconds after which a server waits for its client to speak

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


class Booted(NamedTuple):
    """A stack that is ready to answer."""

    url: str  # URL of its OpenAI API, with /v1
    model: str
    folder: Path  # folder of its logs
    boot: Json  # what run.json says about its boot
    home: Path  # its folder, which marks its processes

    def chat(self, text: str, headers: Mapping[str, str] = {}, **fields: Any) -> Json:
        """Returns the answer to one chat request."""
        whole: Json = json.loads(self._post([{"role": "user", "content": text}], headers, fields))
        return whole

    def prompt(self, messages: Sequence[Json], **fields: Any) -> str:
        """Returns the prompt that Dynamo makes of messages."""
        said = self._post(messages, {}, {"stream": True, "nvext": {"annotations": ["formatted_prompt"]}, **fields})
        prompt: str = json.loads(re.findall(r"^event: formatted_prompt\n: (.*)$", said, re.MULTILINE)[0])
        return prompt

    def _post(self, messages: Sequence[Json], headers: Mapping[str, str], fields: Mapping[str, Any]) -> str:
        body = json.dumps({"model": self.model, "messages": messages, "max_tokens": 8, **fields}).encode()
        request = urllib.request.Request(f"{self.url}/chat/completions", body, {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=ANSWER) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """Returns a metric of the endpoint's server, summed over its series."""
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE))

    def get(self, path: str) -> str:
        """Returns the answer of the endpoint's server to a GET request of a path."""
        with urllib.request.urlopen(self.url.removesuffix("/v1") + path, timeout=ANSWER) as answer:
            return str(answer.read().decode())

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text(errors="replace")

    def exposed(self) -> list[str]:
        """Returns the sockets of the stack that other machines can reach, except those that speak ZeroMQ."""
        return [f"{name} at {port}" for name, port in sorted(self._listening()) if not _greets_as_zeromq(port)]

    def _listening(self) -> Iterator[tuple[str, int]]:
        """Yields command and port of each socket that is bound to more than loopback."""
        for pid in (pid for pid, home in ownership.processes() if home == str(self.home)):
            process = psutil.Process(pid)
            for seen in process.net_connections("tcp"):
                if seen.status == psutil.CONN_LISTEN and seen.laddr and seen.laddr.ip not in LOOPBACK:
                    yield " ".join(process.cmdline()), seen.laddr.port


def _greets_as_zeromq(port: int) -> bool:
    """Returns whether a server speaks ZeroMQ. Its sockets send the first byte (ZMTP 3.1, section 3.1), with which no text begins."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER) as connection:
        connection.settimeout(GREETING)
        try:
            return connection.recv(1) == b"\xff"
        except TimeoutError:
            return False


@contextmanager
def booted(wanted: str, folder: Path, changes: Sequence[tuple[str, Any]] = ()) -> Iterator[Booted]:
    """Boots a stack until the block ends. Skips the test if this machine lacks a requirement."""
    spec = load_backend(wanted, ROOT, changes)
    assert isinstance(spec, StackSpec)
    backend = Stacked(spec, SessionTerms())
    try:
        try:
            endpoint = backend.start(folder)
        except MissingError as error:
            pytest.skip(f"NOT TESTED: {error}")
        assert backend._held is not None
        yield Booted(endpoint.url, endpoint.model, folder, backend.description["boot"], backend._held.home)
    finally:
        backend.stop()

    assert is_free(int(endpoint.url.rpartition(":")[2].removesuffix("/v1")))


def run(backend: str, folder: Path, *options: str, status: int = 0, suite: str = "banking", seconds: float = 240) -> Json:
    """Runs a session with a shipped suite and returns its run.json. Its directory is `folder`/latest. It may take `seconds`.

    `backend` is empty if the options name the backends of arms.
    """
    named = [f"--agentbench-backend={backend}"] if backend else []
    command = [sys.executable, "-m", "pytest", f"scenarios/{suite}", "-q", "-p", "no:cacheprovider", *named]
    scrubbed = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(
        [*command, f"--agentbench-reports={folder}", *options],
        cwd=ROOT,
        env=scrubbed,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )

    assert status == done.returncode, done.stdout[-5000:]
    said: Json = json.loads((folder / "latest" / "run.json").read_text())
    return said
