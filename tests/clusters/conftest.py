"""An API server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes_server import KubernetesServer, kubernetes_server


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    """Yields a server that all tests share. Each test has labels of its own."""
    with kubernetes_server(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server
