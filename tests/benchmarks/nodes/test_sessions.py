"""The rate of a session while all of its node workers have work."""

from __future__ import annotations

import pytest

from benchmarks.nodes.sessions import Rate, share
from pytest_agentbench.records import Rollout


@pytest.mark.parametrize(
    ("began", "ended", "expected"),
    [
        pytest.param(100, 200, 1.0, id="inside"),
        pytest.param(0, 200, 0.5, id="began before"),
        pytest.param(250, 350, 0.5, id="ended after"),
        pytest.param(0, 400, 0.5, id="longer"),
        pytest.param(0, 100, 0.0, id="before"),
        pytest.param(300, 400, 0.0, id="after"),
    ],
)
def test_a_rollout_counts_as_far_as_it_lies_in_the_time(began: int, ended: int, expected: float) -> None:
    """A rollout counts by its share between the two times, so that the rate does not depend on where they cut."""
    rollout = Rollout("bench", "bench-00000", "default", 1, status="ok", started_ns=began, ended_ns=ended)

    assert expected == share(rollout, 100, 300)


def test_a_busy_machine_is_named() -> None:
    """Above 70 % of the machine's CPU, a rate says nothing about node workers."""
    assert not Rate(2, 10.0, 0.70, 6.0).is_cpu_bound
    assert Rate(2, 10.0, 0.71, 6.0).is_cpu_bound
