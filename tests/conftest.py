"""Fixtures of the project's own tests."""

from __future__ import annotations

import os
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  # before any pytester, which forgets modules: its C part cannot be imported twice
import pytest
import yaml  # noqa: F401  # the same

from pytest_agentbench.reports.ci import DETECTED
from tests import certificates as certificate_files
from tests.kubernetes_server import KubernetesServer, kubernetes_server
from tests.project import Project
from tests.slurm_cluster import SlurmCluster, slurm_cluster

#: The tests start hundreds of processes. Without bytecode files, each of them would compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# pytest also loads this file to report a path that does not exist, which has to work after `make bench` alone.
try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:

    def pytest_pycollect_makemodule() -> None:
        """Makes tests of this folder a collection error of one sentence."""
        raise pytest.Collector.CollectError("the packages that the project's own tests need are not installed; run `make test`")

else:
    # The duration of an example on a busy machine does not depend on the code.
    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints a line for each reason for which tests were not tried here, because an `s` in a row of dots is easy to miss."""
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    for reason, count in sorted(reasons.items()):
        if reason.startswith("NOT TESTED"):
            terminalreporter.write_line(f"{reason}  [{count} test{'s' * (count > 1)}]", yellow=True)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose backend finds a lamp and then answers. Tests add suites and run pytest in it.

    Its sessions do not detect the CI in which these tests run, so that they write no reports for it and pytest truncates its summary.
    """
    for variable in (*DETECTED, "CI", "BUILD_NUMBER"):
        monkeypatch.delenv(variable, raising=False)
    return Project(pytester)


@pytest.fixture
def forgotten_modules(tmp_path: Path) -> Iterator[Path]:
    """`tmp_path`. Modules that a test imports from there are removed afterwards."""
    yield tmp_path
    own = [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(f"{tmp_path}/")]
    for name in own:
        del sys.modules[name]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and server.pem and server.key that it signs, for 127.0.0.1 only."""
    return certificate_files.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(certificates: Path) -> ssl.SSLContext:
    """The TLS context of a server with these certificates."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    return context


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    """An API server of Kubernetes, which all tests share. Each test has labels of its own."""
    with kubernetes_server(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


@pytest.fixture(scope="session")
def slurm_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A running cluster of Slurm."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_nodes: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster of Slurm whose nodes are idle, for commands that this process and its children call."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm_nodes.environment[name])
    yield slurm_nodes
    slurm_nodes.clear()


CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="NOT TESTED in a browser: pip install playwright")
    if not CHROMIUM.exists():
        pytest.skip("NOT TESTED in a browser: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()
