"""The server of a run's metrics."""

from __future__ import annotations

import socket

import pytest

from pytest_agentbench.session.metrics_server import MetricsServer


def test_ports() -> None:
    """Port 0 is any free port. A port that is in use is a usage error with a way out."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            pytest.UsageError, match=f"--agentbench-metrics-port {port}: the port cannot be used: Address already in use; give"
        ):
            MetricsServer(port)
    free = MetricsServer(0)
    free.close()

    assert f"metrics of this run at http://127.0.0.1:{free.server_port}/metrics" == free.sentence
    assert free.server_port not in (0, port)
