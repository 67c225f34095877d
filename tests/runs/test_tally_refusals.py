"""Errors in run.json are reported with file and key, and other schemas are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.runs.run_file import read_run
from tests.made_runs import run_of


def written(directory: Path, **changes: Any) -> Path:
    """Writes a run.json with changed keys. Returns the run directory."""
    run = plain(run_of(Rollout("shop", "s-0", "default", 1, "ok", scores={"tsq": Score(1.0)})))
    (directory / "run.json").write_text(json.dumps({**run, **changes}))
    return directory


def test_a_wrong_value(tmp_path: Path) -> None:
    """The message has the file, the key and the expected value."""
    run = json.loads((written(tmp_path) / "run.json").read_text())
    run["suites"]["shop"]["scores"]["tsq"]["mean"] = "high"
    written(tmp_path, suites=run["suites"])

    with pytest.raises(ConfigError) as raised:
        read_run(tmp_path)

    assert f"{tmp_path}/run.json: suites.shop.scores.tsq.mean is a text, not an object" == str(raised.value)


@pytest.mark.parametrize("schema", ["agentbench-run/2", "agentbench-run/9"])
def test_another_version(tmp_path: Path, schema: str) -> None:
    """A run with another schema is refused. The message has both versions and the command to run again."""
    written(tmp_path, schema=schema, command=["pytest", "scenarios/shop", "-k", "a b"], suites=[])

    with pytest.raises(ConfigError) as raised:
        read_run(tmp_path)

    again = "run `pytest scenarios/shop -k 'a b'` again"
    assert f"{tmp_path}/run.json has schema {schema}, but this version reads only agentbench-run/8; {again}" == str(raised.value)
