"""The rollouts that a session reads from its journal while it runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pytest_agentbench.lib import codec
from pytest_agentbench.records import Rollout, Scale
from pytest_agentbench.runs.journal import Journal
from pytest_agentbench.session.results import MainScore
from pytest_agentbench.session.run_metrics import RolloutsSoFar


def append(journal: Journal, *rollouts: Rollout) -> None:
    for each in rollouts:
        journal.append(each.key, json.dumps(codec.plain(each)).encode())


def test_a_rollout_that_ran_again_counts_once(tmp_path: Path) -> None:
    """Each reading has all rollouts so far. A rollout that ran again in a later session replaces its earlier record."""
    first = Rollout("shop", "a", "default", 1, status="infra_error", session=1)
    again, other = replace(first, status="ok", session=2), replace(first, scenario="b", status="ok", session=2)
    so_far = RolloutsSoFar(tmp_path, {"shop": MainScore("tsq", Scale())})

    with Journal(tmp_path) as journal:
        counts, sizes = [], []
        for rollouts in ((first,), (), (other,), (again,)):
            append(journal, *rollouts)
            reader = so_far.read()
            counts.append({status: count for status, count in reader.suites["shop"].statuses.items() if count})
            sizes.append(len(reader.frame.scenarios().rollouts["session"]))

    assert [{"infra_error": 1}, {"infra_error": 1}, {"infra_error": 1, "ok": 1}, {"ok": 2}] == counts
    assert [1, 1, 2, 2] == sizes
