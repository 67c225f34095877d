"""The benchmark of the state of the Thompson-sampling router."""

from __future__ import annotations

import pytest

from benchmarks.router_state import MOST, main, route
from pytest_agentbench.router.constants import PRESETS


@pytest.mark.parametrize("preset", [*PRESETS])
def test_limits_hold(preset: str) -> None:
    """Beyond the limits, the router remembers no more, while workers join and leave. Each decision is for a worker that is there."""
    state = route(3000, preset, change=0.02, max_prefixes=300, max_pending=200)

    assert (0, 300) == (state.wrong, state.sessions)
    assert 0 < state.pending <= 200
    assert state.changes > 0
    assert state.learners <= MOST
    assert state.averages <= 2 * (MOST * 10 + 10)


def test_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints the number of wrong decisions, and the memory after each tenth of the calls."""
    main(["--calls", "100"])
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].startswith("100 calls, ")
    assert lines[0].endswith(" 0 wrong decisions")
    assert 10 == len(lines[2].split(":")[1].split(","))
