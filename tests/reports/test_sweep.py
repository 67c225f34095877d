"""A sweep in words."""

from __future__ import annotations

from pytest_agentbench.reports.sweep import knee_text
from pytest_agentbench.sweep.knee import Operation


def test_a_knee_at_the_end() -> None:
    """One that is the greatest level may lie beyond it, and says so; one between two levels does not; two levels have none."""
    rising = [Operation(1, 10, 100), Operation(2, 20, 100), Operation(4, 40, 100)]
    bent = [*rising, Operation(8, 41, 200)]

    (last,), (between,) = knee_text(rising), knee_text(bent)

    assert last.startswith("knee: 4 in flight")
    assert last.endswith("; no level beyond it was measured, and the knee may lie there")
    assert between.startswith("knee: 4 in flight")
    assert "beyond" not in between
    assert [] == [*knee_text(rising[:2])]
