"""A real tap for the tests of the pool's parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.tap.protocol import TapConfig, TapListening, TapPorts

TOKEN = "of-the-test"


@pytest.fixture(scope="session")
def taps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TapPorts]:
    """The ports of one tap, which all tests share. Each test has a secret of its own, so that no two use one address."""
    child = Child("pytest_agentbench.tap", TapConfig(TOKEN), tmp_path_factory.mktemp("tap") / "tap.log")
    ports = child.ready(TapListening)
    yield TapPorts(ports.port, (ports.control_port,), TOKEN)
    child.stop()

    assert "" == child.log.read_text()
