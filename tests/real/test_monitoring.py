"""Prometheus in a real Dynamo stack of mockers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from tests.monitored_session import NOT_IN_MOCKERS, PATIENCE, monitored_session, needs_prometheus
from tests.waits import wait_for


@needs_prometheus
@pytest.mark.skipif(not is_whole(home_of("dynamo")), reason="NOT TESTED with Dynamo: agentbench env create dynamo")
@pytest.mark.timeout(600)
def test_dynamo(tmp_path: Path) -> None:
    """Prometheus reads frontend, workers and run. Each query of the dashboard and each rule has a series, except those of other engines.

    `tests/acceptance/test_monitoring.py` shows that the built-in engine has the others. The frontend's count of requests is at least the
    run's count of calls.
    """
    with monitored_session(tmp_path, "dynamo-mocker", "--agentbench-limit=4") as prometheus:
        wait_for(lambda: prometheus.query("sum(agentbench_rollouts) == 4"), "the rollouts of the run", PATIENCE)
        missing = prometheus.ask_until_all("frontend", "tiny", NOT_IN_MOCKERS)
        counts = [float(prometheus.query(f"sum({name})")[0]["value"][1]) for name in ("agentbench_calls", "dynamo_frontend_requests_total")]

        assert NOT_IN_MOCKERS == missing
        assert {"": 1, "frontend": 1, "worker": 4} == {service: len(instances) for service, instances in prometheus.targets().items()}
        assert [] == prometheus.unhealthy_rules()
        assert 4 <= counts[0] <= counts[1]
