"""A real pool with scripted node workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nodes import pool_alone
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.journal import record_line

pytestmark = pytest.mark.timeout(120)


def test_a_pool_gives_all_leases(tmp_path: Path) -> None:
    """Each rollout is recorded once, and each lease but the first ones fills a slot that an attempt has left."""
    record = tmp_path / "record.json"
    record.write_bytes(record_line(Rollout("bench", "bench-00000", "default", 1, status="ok", started_ns=1, ended_ns=2)))

    step = pool_alone.run(record, leases=40, nodes=2, slots=4)

    assert (2, 4, 40, 36) == (step.nodes, step.slots, step.leases, step.refilled)
