"""The routers of the comparison, each as real processes before the same engines, with a way to add and remove engines."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import aiohttp
from yarl import URL

from benchmarks.measurement import BenchmarkError, BenchmarkSkipped
from benchmarks.routing_help.engines import FIRST, FOURTH, MODEL, RESERVE
from pytest_agentbench.backends.machine.virtual_environments import find_environment
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json

HERE = Path(__file__).parent
BACKENDS = HERE.parents[1] / "backends"
BOOT_LIMIT = 120.0  # seconds
END_LIMIT = 10.0  # seconds


class Router(ABC):
    """A router before the engines `FIRST`. `url` is known after `start`."""

    def __init__(self, engines: Sequence[str], folder: Path) -> None:
        self.engines, self.folder, self.url = engines, folder, ""
        self._processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    async def start(self) -> None:
        """Starts the router, and waits until it has its engines."""

    @abstractmethod
    async def join(self, engine: int) -> None:
        """Adds an engine."""

    @abstractmethod
    async def leave(self, engine: int) -> None:
        """Removes an engine. Calls in flight there may end."""

    @abstractmethod
    async def restore(self) -> None:
        """Undoes the changes of a block, and waits until the router has exactly the engines `FIRST`."""

    def stop(self) -> None:
        """Ends the router."""
        for process in self._processes:
            end(process)

    def run(self, name: str, command: Sequence[str], variables: Mapping[str, str], *, stdin: int | None = None) -> subprocess.Popen[bytes]:
        """Starts a process, whose output goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **variables}, start_new_session=True
            )
        self._processes.append(process)
        return process


class HttpRouter(Router):
    """A router with the paths `/workers`. The engines that it has are the values of `url` in their list."""

    async def join(self, engine: int) -> None:
        await self._request("POST", "/workers", {"url": self.engines[engine]})

    async def leave(self, engine: int) -> None:
        await self._request("DELETE", f"/workers/{await self._name(self.engines[engine])}")

    async def restore(self) -> None:
        # smg lists an engine that leaves for five more seconds, and refuses it meanwhile.
        await self.leave(RESERVE)
        await self._wait([number for number in FIRST if number != FOURTH])
        await self.join(FOURTH)
        await self._wait(FIRST)

    async def _wait(self, engines: Iterable[int]) -> None:
        """Waits until the router has exactly these engines, and all of them are healthy."""
        wanted = {self.engines[number]: True for number in engines}
        deadline = time.monotonic() + BOOT_LIMIT
        while {each["url"]: each["is_healthy"] for each in await self._workers()} != wanted:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{self.url}: the router does not have its engines after {BOOT_LIMIT:g} s: {await self._workers()}")
            await asyncio.sleep(0.1)

    async def _name(self, url: str) -> str:
        """Returns the name of an engine in paths."""
        return quote(url, safe="")

    async def _workers(self) -> list[Json]:
        try:
            return list((await self._request("GET", "/workers"))["workers"])
        except aiohttp.ClientConnectorError:
            return []

    async def _request(self, method: str, path: str, body: Json | None = None) -> Json:
        async with aiohttp.ClientSession() as http, http.request(method, URL(self.url + path, encoded=True), json=body) as answer:
            found: Json = await answer.json()
            if answer.status >= 400:
                raise BenchmarkError(f"{method} {self.url}{path}: {answer.status}: {found}")
            return found


class ThompsonHttpRouter(HttpRouter):
    """This package's router with a preset."""

    preset = ""

    async def start(self) -> None:
        config = {
            "engines": [self.engines[number] for number in FIRST],
            "preset": self.preset,
            "decisions": str(self.folder / f"{self.preset}.jsonl"),
        }
        self._child = Child("pytest_agentbench.router", config, self.folder / f"thompson-{self.preset}.log")
        self.url = f"http://127.0.0.1:{self._child.ready(Listening).port}"
        await self._wait(FIRST)

    def stop(self) -> None:
        self._child.stop()


class Sticky(ThompsonHttpRouter):
    preset = "sticky"


class Nat(ThompsonHttpRouter):
    preset = "nat"


class RustRouter(HttpRouter):
    """vllm-router or smg with a policy. Retries and the circuit breaker are off, as in the shipped backends."""

    environment = policy = ""
    command: tuple[str, ...] = ()

    async def start(self) -> None:
        port, metrics = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = ["--host=127.0.0.1", f"--port={port}", "--prometheus-host=127.0.0.1", f"--prometheus-port={metrics}"]
        options += [f"--policy={self.policy}", "--disable-retries", "--disable-circuit-breaker", "--worker-startup-check-interval=1"]
        engines = [self.engines[number] for number in FIRST]
        program, *words = self.command
        self.run(
            f"{self.environment}-{self.policy}",
            [str(home(self.environment) / "bin" / program), *words, *options, "--worker-urls", *engines],
            {"RUST_LOG": "warn"},
        )
        await self._wait(FIRST)


class VllmRouter(RustRouter):
    environment, command = "vllm-router", ("vllm-router",)


class RoundRobin(VllmRouter):
    policy = "round_robin"


class StickyLeastLoaded(VllmRouter):
    policy = "sticky_least_loaded"


class ConsistentHashing(RustRouter):
    """smg, which names engines by ids of its own."""

    environment, command, policy = "smg", ("smg", "launch"), "consistent_hashing"

    async def _name(self, url: str) -> str:
        return next(str(each["id"]) for each in await self._workers() if each["url"] == url)


class DynamoKv(Router):
    """NVIDIA Dynamo's frontend with its policy `kv`, and a worker for each engine, which forwards the calls to it.

    A worker that joins has been started before, and only registers itself then, as an engine that joins another router runs already.
    """

    async def start(self) -> None:
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._python = str(home("dynamo") / "bin" / "python")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = ["--policy=kv", "--http-host=127.0.0.1", f"--http-port={port}", "--no-router-kv-events"]
        self.run("dynamo-frontend", [self._python, str(BACKENDS / "dynamo_frontend.py"), *options], self._variables())
        for number in (*FIRST, RESERVE):
            self._prepare(number)
            if number in FIRST:
                await self.join(number)
        await self._wait()

    async def join(self, engine: int) -> None:
        stdin = self._workers[engine].stdin
        assert stdin is not None
        stdin.write(b"\n")
        stdin.flush()

    async def leave(self, engine: int) -> None:
        self._workers[engine].send_signal(signal.SIGTERM)

    async def restore(self) -> None:
        await self.leave(RESERVE)
        for number in (FOURTH, RESERVE):
            await asyncio.to_thread(end, self._workers[number])
            self._prepare(number)
        await self.join(FOURTH)
        await self._wait()

    async def _wait(self) -> None:
        """Waits until the workers of the engines `FIRST` are registered, and until the reserve is ready to join."""
        deadline = time.monotonic() + BOOT_LIMIT
        while not await self._has_all():
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{self.url}: the workers of Dynamo are not there after {BOOT_LIMIT:g} s; logs are in {self.folder}")
            await asyncio.sleep(0.2)

    async def _has_all(self) -> bool:
        held = self.folder / f"held-{RESERVE}"
        registered = [self.folder / f"registered-{number}" for number in FIRST]
        return held.exists() and all(file.exists() for file in registered) and await self._answers()

    async def _answers(self) -> bool:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{self.url}/v1/models") as answer:
                return answer.status == 200 and bool((await answer.json()).get("data"))
        except aiohttp.ClientError:
            return False

    def _prepare(self, number: int) -> None:
        """Starts the process of a worker, which registers itself when a line is written to its stdin."""
        for name in ("held", "registered"):
            (self.folder / f"{name}-{number}").unlink(missing_ok=True)
        arguments = [",".join(self.engines), str(number), MODEL, str(self.folder / "model"), str(self.folder)]
        command = [self._python, str(HERE / "held_worker.py"), *arguments]
        self._workers[number] = self.run(f"dynamo-worker-{number}", command, self._variables(), stdin=subprocess.PIPE)

    def _variables(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "PYTHONPATH": str(BACKENDS),
            "HF_HUB_OFFLINE": "1",
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self.folder / "discovery"),
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
            "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
            "DYN_LOG": "warn",
        }


#: Name of an arm -> its router, and what it is. The first is compared with each of the others.
ARMS: Mapping[str, tuple[Callable[[Sequence[str], Path], Router], str]] = {
    "thompson sticky": (Sticky, "this package's router, preset `sticky`"),
    "thompson nat": (Nat, "this package's router, preset `nat`: the constants of the NeMo Agent Toolkit"),
    "round robin": (RoundRobin, "vllm-router, `round_robin`"),
    "plain KV": (DynamoKv, "NVIDIA Dynamo's frontend, policy `kv` without affinity, with a worker before each engine"),
    "session affinity": (ConsistentHashing, "smg, `consistent_hashing` by the session's id"),
    "sticky least loaded": (StickyLeastLoaded, "vllm-router, `sticky_least_loaded`"),
}

#: Arms that keep each session on one engine.
AFFINITY = ("session affinity", "sticky least loaded")


def home(environment: str) -> Path:
    """Returns the folder of an environment. Raises BenchmarkSkipped if it does not exist."""
    folder = find_environment(environment).home
    if not (folder / "bin").is_dir():
        raise BenchmarkSkipped(f"the environment {environment} is missing; run: agentbench env create {environment}")
    return folder


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
