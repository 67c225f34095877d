"""Stacks for GPUs on a machine without one: their own routers, frontends and files, with engines that need no GPU."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.real.booted_stack import Booted, booted, run

pytestmark = pytest.mark.timeout(180)


def built_in(*services: str) -> list[tuple[str, Any]]:
    """Returns the changes by which services are built-in engines, which ignore the fields of a disaggregated request."""
    engine = '{"policy": "lexical", "model": "{model}", "port": {port}}'
    command = ["python", "-m", "pytest_agentbench.engine", engine]
    changes = {"run": command, "gpus": 0, "python": "agentbench"}
    return [(f"services.{service}.{key}", value) for service in services for key, value in changes.items()]


def answered(stack: Booted, service: str) -> float:
    """Returns how many requests a service has answered."""
    (url,) = re.findall(rf" {service} is ready: (\S+)/health", (stack.folder / "stack_daemon.log").read_text())
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return sum(map(float, re.findall(r"^vllm:request_success_total(?:{.*})? (\S+)$", answer.read().decode(), re.MULTILINE)))


def test_sglangs_router_disaggregates(tmp_path: Path) -> None:
    """The router of `sglang-disagg` sends each request once to the engine that reads prompts and once to the one that writes answers."""
    with booted("sglang-disagg", tmp_path, built_in("prefill", "decode")) as stack:
        before = {service: answered(stack, service) for service in ("prefill", "decode")}
        answers = [stack.chat(f"Hello {index}") for index in range(5)]
        after = {service: answered(stack, service) for service in ("prefill", "decode")}

    assert {"assistant"} == {answer["choices"][0]["message"]["role"] for answer in answers}
    assert {"prefill": 5, "decode": 5} == {service: after[service] - before[service] for service in after}


def test_dynamo_accepts_the_model_with_random_weights(tmp_path: Path) -> None:
    """Ten scenarios run on the stack that `make test-gpu` boots on a small GPU, with Dynamo's mocker instead of vLLM."""
    mocker = ["python", "-m", "dynamo.mocker", "--model-path={run_dir}/model", "--model-name={model}", "--speedup-ratio=100"]
    changes = {"python": "dynamo", "services.worker.run": [*mocker, "--block-size=16"], "services.worker.gpus": 0}
    with booted("tests/gpu/random-8b-dynamo.yaml", tmp_path / "once", [*changes.items()]) as stack:  # skips if the environment is missing
        said = stack.boot["proof"]
    options = [f"--agentbench-set=backend.{key}={json.dumps(value)}" for key, value in changes.items()]
    run_json = run("tests/gpu/random-8b-dynamo.yaml", tmp_path, "--agentbench-limit=10", "--agentbench-concurrency=10", *options)

    assert "1 aggregated" in [rung["detail"] for rung in said]
    assert 10 == run_json["plan"]["finished"]
