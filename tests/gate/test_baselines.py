"""Baseline files of other versions, and runs without rollouts, are not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import read_evidence, write_baseline
from tests.made_runs import run_directory
from tests.tables.shop import ALL


def test_a_baseline_of_another_version(tmp_path: Path) -> None:
    """A baseline file of an older version is refused with both numbers and the commands that make it again."""
    path = tmp_path / "shop.jsonl"
    path.write_text('{"schema": "agentbench-baseline/1", "suite": "shop", "run": "old"}\n')

    with pytest.raises(ConfigError) as raised:
        read_evidence(path)

    assert (
        f"{path} has schema agentbench-baseline/1, but this version reads only agentbench-baseline/5; to make it again, run "
        f"`pytest -m shop`, then `agentbench baseline promote --suite shop --to {path}`"
    ) == str(raised.value)


def test_a_baseline_before_versions_of_the_stopwatch(tmp_path: Path) -> None:
    """A baseline file without a version of the stopwatch, as earlier versions wrote it, was timed by version 1."""
    path = write_baseline(read_evidence(run_directory(tmp_path / "run", *ALL)), "shop", tmp_path / "shop.jsonl")
    first, *others = path.read_text().splitlines()
    header = json.loads(first)
    del header["stopwatch_version"], header["delayed_ack_share"]
    path.write_text("\n".join((json.dumps(header), *others)))

    facts = read_evidence(path).facts

    assert (1, 0.0) == (facts.stopwatch_version, facts.delayed_ack_share)


def test_a_run_without_its_journal(tmp_path: Path) -> None:
    """A run without rollouts.jsonl is refused as a baseline or for a comparison. The error names the missing file."""
    directory = run_directory(tmp_path / "run", *ALL)
    (directory / "rollouts.jsonl").unlink()

    with pytest.raises(ConfigError, match=r"run has no rollouts\.jsonl, so its rollouts cannot be read; choose a run that has one"):
        read_evidence(directory)
