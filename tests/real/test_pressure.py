"""The benchmark `pressure` with few repeats: the real NVIDIA Dynamo routes in three ways, and no pass of its workers is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pressure.benchmark import session
from benchmarks.pressure.project import ARMS
from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.errors import MissingError

pytestmark = pytest.mark.timeout(300)


def test_three_ways(tmp_path: Path) -> None:
    """With prompts that begin alike, each way of routing has cache hits, and a hit ratio below 1."""
    try:
        resolve_python("dynamo", tmp_path)
    except MissingError as error:
        pytest.skip(f"NOT TESTED: {error}")

    cells, _ = session(tmp_path, concurrency=2, repeats=3)

    assert [*ARMS] == [*cells]
    for cell in cells.values():
        assert cell.hit_ratio.mean is not None
        assert 0.2 < cell.hit_ratio.mean < 1
        assert cell.calls_per_minute.mean
        assert cell.ttft_p95.mean
