"""Provides a real tap for the tests of the pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.tap.protocol import TapConfig, TapListening, TapPorts

TOKEN = "of-the-test"


@pytest.fixture(scope="session")
def taps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TapPorts]:
    """Returns the ports of one tap that all tests share. Each test has its own secret, so no two tests use the same address."""
    child = Child("pytest_agentbench.tap", TapConfig(TOKEN), tmp_path_factory.mktemp("tap") / "tap.log")
    ports = child.ready(TapListening)
    yield TapPorts(ports.port, (ports.control_port,), TOKEN)
    child.stop()

    assert "" == child.log.read_text()
