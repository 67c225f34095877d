"""Writes the project of the benchmark: its suite, and a backend for each way of routing, made from a shipped YAML file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
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


#: Way of routing -> policy of the shipped `dynamo-mocker`. The first is what the others are compared with.
ARMS: Mapping[str, str] = {"round_robin": "round-robin", "kv": "kv", "thunderagent": "thunderagent"}
BASE, *OTHERS = ARMS

#: Files of `backends/` that the shipped `dynamo-mocker` needs.
FILES = ("dynamo_mocker.py", "dynamo_frontend.py", "mocker_profile.py", "tiny_tokenizer.py", "dynamo-policies/thunderagent.yaml")


def make(folder: Path, tasks: int) -> None:
    """Writes the project to an empty folder, with this number of tasks. Workers will write their passes to FOLDER/passes/ARM."""
    backends, suite = folder / "backends", folder / "scenarios" / "pressure"
    backends.mkdir(parents=True)
    suite.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\nasyncio_default_fixture_loop_scope = function\n")
    (backends / "dynamo-policies").mkdir()
    for name in FILES:
        shutil.copy(ROOT / "backends" / name, backends / name)
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
    made: Stack = yaml.safe_load((ROOT / "backends" / "dynamo-mocker.yaml").read_text(encoding="utf-8"))
    made["settings"] |= {"policy": ARMS[arm], "speedup": SPEEDUP, "blocks": BLOCKS}
    made["services"]["worker"]["replicas"] = made["ready"]["workers"]["aggregated"] = WORKERS
    made["services"]["worker"]["env"] |= {
        "DYN_FPM_TRACE": "1",
        "DYN_FPM_MODE": "full",
        "DYN_FPM_OUTPUT_PATH": str(passes / "worker"),
    }
    return made
