"""The plan of a reproduction: its sessions, and that a directory has only cells of one plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.reproduction.experiment import Cell, ReproductionPlan, duration, methods, record_plan

METHODS = {"baseline": "vllm-default-router", "thunderagent": "thunderagent"}
PLAN = ReproductionPlan("scenarios/hle", "orchestrator", 9000.0, (600.0, 7800.0), 2.0, ("-k", "x"), METHODS)


def test_cells() -> None:
    """At each concurrency, all methods have a cell. A cell is a session with the paper's window and a time limit.

    There are as many sandboxes as rollouts in flight, so that none waits for one.
    """
    cells = PLAN.cells([24, 48])

    assert ["baseline-c24", "thunderagent-c24", "baseline-c48", "thunderagent-c48"] == [cell.name for cell in cells]
    assert [
        "scenarios/hle",
        "--agentbench-variants=orchestrator",
        "--agentbench-backend=vllm-default-router",
        "--agentbench-concurrency=24",
        "--agentbench-sandboxes=24",
        "--agentbench-time-limit=9000s",
        "--agentbench-window=600s:7800s",
        "--agentbench-sample-interval=2s",
        "-k",
        "x",
    ] == PLAN.pytest_arguments(cells[0])
    assert "--agentbench-backend=vllm-default-router" == replace(PLAN, variant="").pytest_arguments(cells[0])[1]
    assert "--agentbench-window=600s:" in replace(PLAN, window=(600.0, None)).pytest_arguments(cells[0])


@pytest.mark.parametrize(
    ("cells", "duration_s", "text"),
    [(12, 9000.0, "30 h 0 min"), (1, 9000.0, "2 h 30 min"), (1, 7182.0, "2 h 0 min"), (1, 90.0, "1.5 min"), (0, 9000.0, "0 min")],
)
def test_the_duration(cells: int, duration_s: float, text: str) -> None:
    """The duration includes only the windows. Boots and rollouts that finish later come on top."""
    assert text == duration([Cell("a", "b", 1)] * cells, replace(PLAN, duration_s=duration_s))


def test_methods() -> None:
    """A method has its own name, or that of its backend's file."""
    assert {"baseline": "vllm-default-router", "thunderagent": "thunderagent", "mine": "my/mine.yaml"} == methods(
        "baseline=vllm-default-router, thunderagent,my/mine.yaml"
    )


@pytest.mark.parametrize("text", ["", ",", "a=,b", "=b", "a,a", "a=b,a=c", "a/b=c"])
def test_invalid_methods(text: str) -> None:
    """Names become folders, so they must be plain and unique."""
    with pytest.raises(ValueError, match=r"such as thunderagent|each name once"):
        methods(text)


def test_a_directory_goes_on(tmp_path: Path) -> None:
    """Further methods and concurrencies are added to the same directory. Its first method stays the baseline."""
    record_plan(PLAN, tmp_path / "out")
    more = record_plan(replace(PLAN, backends={"continuum": "vllm-continuum"}), tmp_path / "out")

    assert ("baseline", ["baseline", "thunderagent", "continuum"]) == (more.baseline, [*more.backends])
    assert [*more.backends] == [*json.loads((tmp_path / "out" / "plan.json").read_text())["backends"]]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (replace(PLAN, duration_s=60.0), r"`duration_s` was 9000.0 and is now 60.0, so their cells cannot be compared; .* --output"),
        (replace(PLAN, window=(0.0, None)), r"`window` was \[600.0, 7800.0\] and is now \[0.0, null\]"),
        (replace(PLAN, options=()), r"`options` was \[\"-k\", \"x\"\] and is now \[\]"),
        (replace(PLAN, backends={"baseline": "vllm"}), "the method 'baseline' was vllm-default-router and is now vllm"),
    ],
)
def test_a_directory_of_another_plan(tmp_path: Path, other: ReproductionPlan, sentence: str) -> None:
    """Cells with different settings do not share a directory."""
    record_plan(PLAN, tmp_path)

    with pytest.raises(ConfigError, match=sentence):
        record_plan(other, tmp_path)


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    """Nothing is written to a directory with other files."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"has files but no plan.json; name a new directory with --output DIR"):
        record_plan(PLAN, tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"does not have schema agentbench-reproduction/1"):
        record_plan(PLAN, tmp_path)
