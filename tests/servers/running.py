"""Real servers, started from what `.ci/servers` installed, and ended with the block."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

INSTALLED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-agentbench" / "servers"
MODEL = INSTALLED / "tiny"
HERE = Path(__file__).parent

READY = 300  # seconds that a server may take to serve; vLLM takes one minute on two cores
LOG_TAIL = 30  # lines

Command = list[str | Path]


class Server(NamedTuple):
    """One that serves the model `tiny`."""

    name: str  # with its version, as docs/stream-upgrade.md calls it
    url: str  # with /v1
    log: Path = Path()  # of its router


def home(name: str) -> Path | None:
    """Where a server's environment is, the newest of several; None where it is not installed."""
    stamps = sorted(INSTALLED.glob(f"{name}-*/installed"))
    return stamps[-1].parent if stamps and (MODEL / "config.json").exists() else None


@contextmanager
def vllm(home: Path, folder: Path) -> Iterator[Server]:
    """The CPU build of vLLM."""
    port = free_port()
    options = ["--served-model-name", "tiny", "--port", str(port), "--max-model-len", "4096", "--enforce-eager"]
    parsers = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
    parsers += ["--structured-outputs-config", json.dumps({"enable_in_reasoning": True})]
    command: Command = [home / "bin" / "vllm", "serve", MODEL, *options, *parsers, "--enable-prompt-tokens-details"]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with process(command, environment, folder / "vllm.log") as server:
        wait_for(f"http://127.0.0.1:{port}/health", "", {folder / "vllm.log": server})
        yield Server(f"vLLM {version(home)}", f"http://127.0.0.1:{port}/v1")


@contextmanager
def dynamo(home: Path, folder: Path) -> Iterator[Server]:
    """Dynamo's frontend with its KV router, and one mocker, which says what the request names of `script`."""
    port = free_port()
    script = folder / "script.jsonl"
    python = home / "bin" / "python"
    subprocess.run([python, HERE / "script.py", MODEL, script], check=True, capture_output=True)
    environment = of_dynamo(folder)
    worker_command: Command = [python, HERE / "mocker.py", "hermes,qwen3"]
    worker_command += ["--model-path", MODEL, "--model-name", "tiny", "--speedup-ratio", "1000", "--response-replay-trace-path", script]
    front: Command = [python, "-m", "dynamo.frontend", "--http-port", str(port), "--router-mode", "kv"]
    with (
        process(worker_command, environment, folder / "mocker.log") as worker,
        process(front, environment, folder / "frontend.log") as frontend,
    ):
        logs = {folder / "mocker.log": worker, folder / "frontend.log": frontend}
        wait_for(f"http://127.0.0.1:{port}/v1/models/tiny/ready", '"ready":true', logs)
        yield Server(f"Dynamo {version(home)}", f"http://127.0.0.1:{port}/v1")


@contextmanager
def thunderagent(home: Path, folder: Path) -> Iterator[Server]:
    """Dynamo's ThunderAgent router between its frontend and a mocker that nobody can call past it."""
    port = free_port()
    environment = {**of_dynamo(folder), "DYN_LOG": "info"}
    python = home / "bin" / "python"
    blocks: Command = ["--block-size", "16", "--num-gpu-blocks-override", "128"]
    worker: Command = [python, "-m", "dynamo.mocker", "--model-path", MODEL, "--model-name", "hidden", "--speedup-ratio", "1000", *blocks]
    router: Command = [python, "-m", "dynamo.thunderagent_router", "--endpoint", "dynamo.backend.generate", "--router-block-size", "16"]
    router += ["--model-name", "tiny", "--model-path", MODEL]
    front: Command = [python, "-m", "dynamo.frontend", "--http-port", str(port), "--router-mode", "round-robin"]
    commands = {"worker": worker, "frontend": front, "router": router}
    with ExitStack() as stack:
        logs = {folder / f"{name}.log": command for name, command in commands.items()}
        running = {log: stack.enter_context(process(command, environment, log)) for log, command in logs.items()}
        wait_for(f"http://127.0.0.1:{port}/v1/models/hidden/ready", '"ready":true', running)
        wait_for(f"http://127.0.0.1:{port}/v1/models", '"tiny"', running)
        yield Server(f"ThunderAgent of Dynamo {version(home)}", f"http://127.0.0.1:{port}/v1", folder / "router.log")


def of_dynamo(folder: Path) -> dict[str, str]:
    """The environment of a stack of its own."""
    return {
        "HF_HUB_OFFLINE": "1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_SYSTEM_PORT": "0",
        "DYN_LOG": "warn",
    }


def version(home: Path) -> str:
    return home.name.partition("-")[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: Command, environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all that it starts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    scrubbed = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, env={**scrubbed, **environment}, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, start_new_session=True
        )
    try:
        yield started
    finally:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                started.wait(20)


def wait_for(url: str, said: str, processes: Mapping[Path, subprocess.Popen[bytes]]) -> None:
    """Waits until this answers 200 and says that; raises RuntimeError with the logs when a process dies or it takes too long."""
    deadline = time.monotonic() + READY
    while True:
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError), urllib.request.urlopen(url, timeout=5) as answer:
            if said in answer.read().decode():
                return
        if time.monotonic() > deadline or any(each.poll() is not None for each in processes.values()):
            tails = ("\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:]) for log in processes)
            raise RuntimeError(f"{url} does not answer:\n" + "\n---\n".join(tails))
        time.sleep(0.2)


def ask(url: str, body: object) -> bytes:
    """What a POST is answered, whatever the status."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.read()
