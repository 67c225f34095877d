"""backends/mocker_profile.py: profiles of engines' speed, for Dynamo's mocker and for vllm-router."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_agentbench.lib.config import load_yaml

FOLDER = Path(__file__).parents[2] / "backends"
PROGRAM = FOLDER / "mocker_profile.py"
NAMES = sorted(file.stem for file in (FOLDER / "profiles").glob("*.yaml"))
REFERENCE = "vllm-router-reference"


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """Names -> objects of the program."""
    return runpy.run_path(str(PROGRAM))


def mistake(name: str | Path) -> str:
    done = subprocess.run([sys.executable, PROGRAM, name], capture_output=True, text=True, timeout=60, check=False)

    assert (1, "") == (done.returncode, done.stdout)
    return done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_has_seven_numbers_and_a_source(name: str, program: dict[str, Any]) -> None:
    """A profile names the page that its numbers come from. The program prints its numbers under vllm-router's names."""
    data = load_yaml(FOLDER / "profiles" / f"{name}.yaml")
    printed = json.loads(subprocess.run([sys.executable, PROGRAM, name], capture_output=True, timeout=60, check=True).stdout)

    assert data.pop("source").startswith("https://")
    assert data == printed
    assert {model: [*keys] for model, keys in program["KEYS"].items()} == {model: [*numbers] for model, numbers in printed.items()}
    assert 7 == sum(map(len, printed.values()))


def test_prefill(program: dict[str, Any], tmp_path: Path) -> None:
    """Between the points of the mocker's table, a prefill takes as long as the formula says. The times of the reference calibration."""
    with np.load(program["write"](REFERENCE, tmp_path)) as written:
        seconds = {tokens: np.interp(tokens, written["prefill_isl"], written["prefill_ttft_ms"]) / 1e3 for tokens in (1000, 9500, 50_000)}

    assert {1000: 0.1274, 9500: 1.0053, 50_000: 13.93} == {tokens: pytest.approx(each, rel=1e-3) for tokens, each in seconds.items()}


def test_decode(program: dict[str, Any]) -> None:
    """The mocker knows the sum and the average of the contexts of a step, and these give the share of its number of requests.

    vllm-router's documentation has the last case: 4 requests with 50,000 tokens each get 98.23 tokens per second.
    """
    tables = program["tables"](program["load"](REFERENCE))

    def step_ms(requests: int, context: int) -> float:
        total, tokens = requests * context, tables["decode_active_kv_tokens"]
        rows = [np.interp(context, tables["decode_context_length"], row) for row in tables["decode_itl"]]
        return float(np.interp(total, tokens, rows))

    assert pytest.approx(10.635 + 0.419 + 0.142, rel=0.01) == step_ms(1, 1000)
    assert pytest.approx(10.635 + 64 * 0.419 + 64 * 0.142, rel=0.01) == step_ms(64, 1000)
    assert pytest.approx(1e3 * 4 / 98.23, rel=0.01) == step_ms(4, 50_000)


def test_mistakes(tmp_path: Path) -> None:
    """The message names the known profiles, the missing number or the missing source."""
    file = tmp_path / "own.yaml"
    file.write_text((FOLDER / "profiles" / f"{REFERENCE}.yaml").read_text().replace("fixed_step_seconds", "fixed_step"))
    incomplete = mistake(file)
    file.write_text("source:\nprefill_cost_model: {}\n")

    assert f"there is no profile 'h100'; known: {', '.join(NAMES)}, or a file's path" in mistake("h100")
    assert f"{file}: KeyError('fixed_step_seconds'); a profile has `source` and these numbers: prefill_cost_model: " in incomplete
    assert f"{file}: 'source' is empty; say where the numbers come from" in mistake(file)
