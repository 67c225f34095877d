"""Baseline files of other versions are not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import read_evidence


def test_a_baseline_of_another_version(tmp_path: Path) -> None:
    """A baseline file of an older version is refused with both numbers and the commands that make it again."""
    path = tmp_path / "shop.jsonl"
    path.write_text('{"schema": "agentbench-baseline/1", "suite": "shop", "run": "old"}\n')

    with pytest.raises(ConfigError) as raised:
        read_evidence(path)

    assert (
        f"{path} is of schema agentbench-baseline/1, and this version reads agentbench-baseline/4; "
        f"`pytest -m shop`, then `agentbench baseline promote --suite shop --to {path}` make it again"
    ) == str(raised.value)
