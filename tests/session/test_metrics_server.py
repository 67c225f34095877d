"""The server of a run's metrics, and the rollouts that it reads from the journal of a run that goes on."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.lib import codec
from pytest_agentbench.records import Rollout, Scale
from pytest_agentbench.runs.journal import Journal
from pytest_agentbench.session.metrics_server import MetricsServer, RolloutsSoFar
from pytest_agentbench.session.results import MainScore


def append(journal: Journal, *rollouts: Rollout) -> None:
    for each in rollouts:
        journal.append(each.key, json.dumps(codec.plain(each)).encode())


def test_a_rollout_that_ran_again_counts_once(tmp_path: Path) -> None:
    """Each reading has all rollouts so far. A rollout that ran again in a later session replaces its earlier record."""
    first = Rollout("shop", "a", "default", 1, status="infra_error", session=1)
    again, other = replace(first, status="ok", session=2), replace(first, scenario="b", status="ok", session=2)
    so_far = RolloutsSoFar(tmp_path, {"shop": MainScore("tsq", Scale())})

    with Journal(tmp_path) as journal:
        counts = []
        for rollouts in ((first,), (), (other,), (again,)):
            append(journal, *rollouts)
            counts.append({status: count for status, count in so_far.read().suites["shop"].statuses.items() if count})

    assert [{"infra_error": 1}, {"infra_error": 1}, {"infra_error": 1, "ok": 1}, {"ok": 2}] == counts


def test_ports() -> None:
    """Port 0 is any free port. A port that is in use is a usage error with a way out."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(pytest.UsageError, match=f"--agentbench-metrics-port {port}: the port cannot be used: Address already in use; give"):
            MetricsServer(port)
    free = MetricsServer(0)
    free.close()

    assert f"metrics of this run at http://127.0.0.1:{free.server_port}/metrics" == free.sentence
    assert free.server_port not in (0, port)
