"""Closed-loop traces, in which rollouts begin when others end."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.exports.mooncake import write
from pytest_agentbench.records import Json
from pytest_agentbench.simulation.replay import close_loop
from tests.made_runs import run_directory
from tests.tables.shop import call, rollout


def rows(folder: Path, *spans: tuple[int, int]) -> dict[str, Json]:
    """Returns scenario -> the row of its one call, which lasts from one millisecond to another."""
    rollouts = [
        rollout(f"shop-{number}", start, end, calls=(call(start, start + 1, end=end),)) for number, (start, end) in enumerate(spans)
    ]
    chosen = ChosenRuns([run_directory(folder / "run", *rollouts)])
    write(chosen, folder)
    close_loop(folder / "run.jsonl", chosen.origins[0])
    lines = map(json.loads, (folder / "run.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["request_id"].partition("]")[0].partition("[")[2]: row for row in lines}


def test_later_rollouts_wait_for_earlier_ones(tmp_path: Path) -> None:
    """With two in flight, the third begins after the first and the fourth after the second, with the pauses of the run."""
    trace = rows(tmp_path, (0, 100), (0, 200), (110, 300), (250, 400))

    assert [True, True, False, False] == ["timestamp" in trace[f"shop-{number}"] for number in range(4)]
    assert (["shop[shop-0]-1-1"], 10.0) == (trace["shop-2"]["wait_for"], trace["shop-2"]["delay"])
    assert (["shop[shop-1]-1-1"], 50.0) == (trace["shop-3"]["wait_for"], trace["shop-3"]["delay"])


def test_a_rollout_has_one_successor(tmp_path: Path) -> None:
    """If two rollouts begin after one ended, one succeeds it. The other adds to the rollouts in flight from then on."""
    trace = rows(tmp_path, (0, 100), (110, 200), (120, 300))

    assert [True, False, True] == ["timestamp" in trace[f"shop-{number}"] for number in range(3)]
