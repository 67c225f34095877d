"""Sessions whose stack includes Prometheus, and the metrics of a run that is not over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitored_session import NOT_IN_ENGINES, NOT_IN_MOCKERS, PATIENCE, monitored_session, needs_prometheus
from tests.waits import wait_for


@needs_prometheus
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stack_with_prometheus(tmp_path: Path) -> None:
    """Prometheus reads each engine, the router and the run. All rules can be evaluated.

    There is a series for each query of the dashboard and each rule, except for those that need Dynamo, which `tests/real` has.
    """
    with monitored_session(tmp_path, "thompson", "--agentbench-limit=4") as prometheus:
        wait_for(lambda: prometheus.query("sum(agentbench_rollouts) == 4"), "the rollouts of the run", PATIENCE)
        missing = prometheus.ask_until_all("router", "embedded", NOT_IN_ENGINES)

        assert NOT_IN_ENGINES == missing
        assert NOT_IN_MOCKERS.isdisjoint(NOT_IN_ENGINES)
        assert {"": 1, "router": 1, "engine": 4} == {service: len(instances) for service, instances in prometheus.targets().items()}
        assert [] == prometheus.unhealthy_rules()
        assert "4" == prometheus.query("run:rollouts_finished:sum")[0]["value"][1]
        assert ["monitored"] == [each["metric"]["backend"] for each in prometheus.query("agentbench_run_info")]
