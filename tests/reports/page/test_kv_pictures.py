"""The lines of report.html about KV cache events."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_agentbench.backends.telemetry.kv_cache import CachedCalls
from pytest_agentbench.backends.telemetry.kv_events import FILE
from pytest_agentbench.records import Json, LLMCall, Rollout
from pytest_agentbench.reports.page.kv_pictures import TITLES, kv_series, per_second
from pytest_agentbench.reports.page.pictures import server_series

BEGAN = 1_700_000_000.0
CLOCK = 5_000_000_000  # monotonic nanoseconds at BEGAN


def event(kind: str, seconds: float, blocks: int, replica: int = 0, **keys: object) -> Json:
    times = {"at": BEGAN + seconds, "ns": CLOCK + round(seconds * 1e9)}
    return {**times, "service": "worker", "replica": replica, "event": kind, "blocks": list(range(blocks)), **keys}


def test_blocks_over_time(tmp_path: Path) -> None:
    """Each engine has a line for stored and removed blocks, and one for hits if calls are known. A second without events is 0."""
    events = (
        event("stored", -0.5, 4, block_size=16),
        event("stored", 2.1, 8),
        event("removed", 2.9, 3),
        event("stored", 3, 1, 1, block_size=16),
    )
    (tmp_path / FILE).write_text("".join(f"{json.dumps(each)}\n" for each in events))
    calls = CachedCalls()
    server = {"worker_id": "worker-0"}
    hit = LLMCall(0, CLOCK + 1_500_000_000, CLOCK + 2_000_000_000, prompt_tokens=80, cached_tokens=70, server=server)
    calls.add(Rollout("shop", "a", "default", 1, "ok", calls=(hit,)))
    lines = {(line["title"], line["source"]): line["points"] for line in server_series(tmp_path, BEGAN, calls)}

    assert {
        (TITLES["stored"], "worker 0"): [(0, 4.0), (1, 0.0), (2, 8.0), (3, 0.0)],
        (TITLES["stored"], "worker 1"): [(0, 0.0), (1, 0.0), (2, 0.0), (3, 1.0)],
        (TITLES["removed"], "worker 0"): [(0, 0.0), (1, 0.0), (2, 3.0), (3, 0.0)],
        (TITLES["hit"], "worker 0"): [(0, 0.0), (1, 4.0), (2, 0.0), (3, 0.0)],
    } == lines
    assert [TITLES["hit"]] == [line["title"] for line in kv_series(tmp_path, BEGAN, calls) if line not in kv_series(tmp_path, BEGAN)]


def test_long_runs_have_wider_intervals() -> None:
    """Intervals of several seconds have the mean per second."""
    assert [(0, 2.0), (5, 0.2)] == per_second([(0.0, 4.0), (4.9, 6.0), (5.0, 1.0)], 9.0, 5)


def test_a_run_without_events(tmp_path: Path) -> None:
    """A run without events has no lines."""
    assert [] == kv_series(tmp_path, BEGAN, CachedCalls())
