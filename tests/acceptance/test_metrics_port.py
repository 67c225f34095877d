"""The metrics of a run are served while it runs (`--agentbench-metrics-port`)."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from tests.openmetrics import parsed
from tests.project import TEST_FILE, WAYS, Project

#: The last test of the suite reads the metrics until they have all rollouts.
READS = """
import time
import urllib.error
import urllib.request
from pathlib import Path

def test_metrics():
    ended = time.monotonic() + 120
    while 'agentbench_rollouts{status="ok",suite="shop"} 3.0' not in (text := read()):
        assert time.monotonic() < ended, text
        time.sleep(0.1)
    Path("served.txt").write_text(text)
    for path, host in (("/", "127.0.0.1:PORT"), ("/metrics", "example.org")):
        try:
            read(path, host)
        except urllib.error.HTTPError as error:
            Path(f"{host.partition(':')[0]}.txt").write_text(str(error.code))

def read(path="/metrics", host="127.0.0.1:PORT"):
    request = urllib.request.Request("http://127.0.0.1:PORT" + path, headers={"Host": host})
    return urllib.request.urlopen(request, timeout=60).read().decode()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


@WAYS
def test_metrics_of_a_run_that_goes_on(project: Project, way: tuple[str, ...]) -> None:
    """The controller serves the run so far, in the words of metrics.txt, and no verdict. The port is closed when the session has ended.

    Other paths are not found, and other names of the host are refused, so that web pages of others cannot read them.
    """
    port = free_port()
    project.suite(scenarios=3, test=TEST_FILE + READS.replace("PORT", str(port)))
    result = project.run(*way, "scenarios/shop", f"--agentbench-metrics-port={port}", "--agentbench-ci=gitlab")
    served = {family.name: family for family in parsed((project.root / "served.txt").read_text())}
    written = {family.name: family for family in parsed((project.directory / "metrics.txt").read_text())}

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"agentbench: metrics of this run at http://127.0.0.1:{port}/metrics"])
    assert {"agentbench_run", "agentbench_planned_rollouts", "agentbench_rollouts_in_flight"} == served.keys() - written.keys()
    assert set() == written.keys() - served.keys()
    for same in ("agentbench_score_mean", "agentbench_rollouts", "agentbench_calls", "agentbench_ttft_seconds"):
        assert written[same].samples == served[same].samples
    assert {0.0} == {sample.value for sample in served["agentbench_verdict"].samples}
    assert {"run": project.directory.name, "backend": "embedded"} == served["agentbench_run"].samples[0].labels
    assert ["404", "403"] == [(project.root / f"{name}.txt").read_text() for name in ("127.0.0.1", "example.org")]
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


@pytest.mark.slow
def test_a_port_in_use(project: Project) -> None:
    """A port that another program uses is a usage error before anything boots, and leaves no run directory."""
    project.suite(scenarios=1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = project.run("scenarios/shop", f"--agentbench-metrics-port={port}")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    assert f"--agentbench-metrics-port {port}: the port cannot be used: Address already in use" in result.stderr.str()
    assert not (project.root / "reports").exists()


@pytest.mark.slow
def test_a_free_port(project: Project) -> None:
    """With 0, the number of the port is printed, also if pytest prints no header."""
    project.suite(scenarios=1)
    result = project.run("-q", "scenarios/shop", "--agentbench-metrics-port=0")

    result.stdout.re_match_lines([r"agentbench: metrics of this run at http://127\.0\.0\.1:\d+/metrics"])
    assert 0 == project.run_json["settings"]["metrics_port"]
