"""Writes the project of the benchmark: its suite, and a backend for each way of routing, made from included YAML files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

WORKERS = 2
BLOCK = 16  # tokens
BLOCKS = 1024  # in the KV cache of each worker
SPEEDUP = 2  # of the mocker
STEPS = 6
ANSWER = 48  # tokens of each answer

Stack = dict[str, Any]  # a backend's YAML


def _round_robin(stack: Stack) -> None:
    stack["settings"]["router_mode"] = "round-robin"
    _without_affinity(stack)


def _without_affinity(stack: Stack) -> None:
    """Removes session affinity, so that the router chooses a worker for each call, by the expected state of the caches."""
    stack["services"]["frontend"]["run"].remove("--router-session-affinity-ttl-secs=3600")


def _thunderagent(stack: Stack) -> None:
    stack["services"]["worker"]["replicas"] = WORKERS


#: Way of routing -> the YAML that it is made of, and what becomes of it. The first is what the others are compared with.
ARMS: Mapping[str, tuple[str, Callable[[Stack], None]]] = {
    "round_robin": ("dynamo-mocker", _round_robin),
    "kv": ("dynamo-mocker", _without_affinity),
    "thunderagent": ("dynamo-mocker-thunderagent", _thunderagent),
}
BASE, *OTHERS = ARMS


def make(folder: Path, tasks: int) -> None:
    """Writes the project to an empty folder, with this number of tasks. Workers will write their passes to FOLDER/passes/ARM."""
    backends, suite = folder / "backends", folder / "scenarios" / "pressure"
    backends.mkdir(parents=True)
    suite.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\nasyncio_default_fixture_loop_scope = function\n")
    for name in ("dynamo_mocker.py", "tiny_tokenizer.py"):
        shutil.copy(ROOT / "backends" / name, backends)
    for arm in ARMS:
        passes = folder / "passes" / arm
        passes.mkdir(parents=True)
        (backends / f"{arm}.yaml").write_text(json.dumps(stack(arm, passes)))
    shutil.copy(HERE / "conversation.py", suite)
    (suite / "tasks.json").write_text(json.dumps([f"task-{number}" for number in range(tasks)]))
    (suite / "suite.yaml").write_text(json.dumps(_suite()))
    (suite / "test_pressure.py").write_text("def test_steps(rollout):\n    assert rollout.status == 'ok'\n")


def _suite() -> Stack:
    return {
        "name": "pressure",
        "dataset": {"format": "./conversation.py:load", "file": "tasks.json"},
        "agent": {"kind": "./conversation.py:run", "steps": STEPS, "max_tokens": ANSWER},
        "scorers": ["./conversation.py:finished"],
        "timeout": 600,
    }


def stack(arm: str, passes: Path) -> Stack:
    """Returns the YAML of the backend of an arm, with a small KV cache. Its workers record all passes."""
    name, change = ARMS[arm]
    made: Stack = yaml.safe_load((ROOT / "backends" / f"{name}.yaml").read_text(encoding="utf-8"))
    change(made)
    made["settings"] |= {"speedup": SPEEDUP, "blocks": BLOCKS}
    made["services"]["worker"]["env"] |= {
        "DYN_FPM_TRACE": "1",
        "DYN_FPM_MODE": "full",
        "DYN_FPM_OUTPUT_PATH": str(passes / "worker"),
    }
    return made
