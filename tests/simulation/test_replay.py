"""The simulator process: its arguments, its failures, and that no process is left."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_agentbench.errors import BackendError, MissingError
from pytest_agentbench.simulation.replay import Setting, Simulator
from tests.simulation import stand_in

SETTING = Setting(2, 400, 16, "kv")


def simulator(folder: Path, limit_s: float = 60, profile: Path | None = None) -> Simulator:
    """Returns a simulator for a trace of one line."""
    (folder / "run.jsonl").write_text("{}\n")
    return Simulator(folder / "run.jsonl", profile, {"ttft": 300, "tpot": 20}, limit_s)


def test_arguments_of_the_simulator(tmp_path: Path) -> None:
    """The arguments have workers, router, blocks and their size, objectives, and the speed of a worker if it was measured."""
    words = simulator(tmp_path, profile=Path("/p.npz")).arguments(SETTING, tmp_path / "report.json")
    value = dict(pairwise(words))

    assert ("2", "kv_router") == (value["--num-workers"], value["--router-mode"])
    assert {"block_size": 16, "num_gpu_blocks": 400, "planner_profile_data": "/p.npz"} == json.loads(value["--extra-engine-args"])
    assert ("300", "20") == (value["--sla-ttft-ms"], value["--sla-itl-ms"])


def test_a_failure_has_the_end_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the setting, the exit code, the end of the log, and the command."""
    stand_in.install(tmp_path, monkeypatch, "import sys; sys.exit('replay reached a dead end')")
    with pytest.raises(BackendError) as raised:
        simulator(tmp_path).report(SETTING)

    assert str(raised.value).startswith(
        "the simulator ended with exit code 1 on 2 workers, 400 blocks, kv; the end of its log:\n    replay reached"
    )
    assert "-m dynamo.replay" in str(raised.value)


def test_no_report_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that succeeds without a report is an error. The report of the previous setting is not read again."""
    stand_in.install(tmp_path, monkeypatch, "print('done')")
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(BackendError, match="wrote no report"):
        simulator(tmp_path).report(SETTING)


def test_a_time_limit_ends_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that exceeds its time limit is ended, and the error has the limit.

    The end of child processes is tested with other commands.
    """
    stand_in.install(tmp_path, monkeypatch, "import time\nprint('simulating', flush=True)\ntime.sleep(1000)")
    with pytest.raises(BackendError, match="the simulator did not end within 1 s on 2 workers, 400 blocks, kv"):
        simulator(tmp_path, limit_s=1).report(SETTING)


def test_missing_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment is missing, the error has the command that creates it."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(tmp_path))
    with pytest.raises(MissingError, match="agentbench env create dynamo"):
        simulator(tmp_path).report(SETTING)
