"""Sessions whose node workers are started by a launcher of another package: its states, and how it fails."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.session.nodes import TOKEN_FILE
from tests.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SHOP = "scenarios/shop"

#: A launcher that starts a node worker on this machine, but waits until a file is there, as a job waits in a queue.
CLOUD = """
import threading
from pathlib import Path

from pytest_agentbench.errors import BackendError
from pytest_agentbench.launchers.launcher import Launcher, LaunchState
from pytest_agentbench.launchers.local import Local, LocalNodes


class Cloud(Launcher):
    settings_class = LocalNodes
    is_local = True

    def __init__(self, argument, settings):
        self.argument, self.local, self.looks = argument, Local("1", settings), 0

    def text(self, terms):
        return self.local.text(terms)

    def sentence(self, terms):
        return f"one in the cloud, for {terms.concurrency} rollouts"

    def start(self, terms):
        if self.argument == "refused":
            raise BackendError("the cloud is full")
        self.terms = terms

    def state(self):
        self.looks += 1
        if self.looks < (1 if self.argument else 6):
            return LaunchState("order 7", "the cloud is far away")
        if self.looks == (1 if self.argument else 6):
            self.local.start(self.terms)
        return LaunchState("order 7", problem="the cloud is grey")

    def stop(self):
        self.local.stop()
        Path("stopped").touch()
        if self.argument == "stuck":
            raise BackendError("order 7 cannot be cancelled")
"""


@pytest.fixture
def cloud(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Installs a package with the launcher `cloud`."""
    project.write("packages/cloud.py", CLOUD)
    project.write("packages/cloud-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: cloud\nVersion: 1.0\n")
    project.write("packages/cloud-1.0.dist-info/entry_points.txt", "[pytest_agentbench.launchers]\ncloud = cloud:Cloud\n")
    monkeypatch.setenv("PYTHONPATH", str(project.root / "packages"))
    project.suite()
    return project


def launches(project: Project) -> list[dict[str, Any]]:
    return [*project.run_json["launches"]]


def test_node_workers_that_wait_for_machines(cloud: Project) -> None:
    """The user sees why node workers wait and what is wrong. The wait does not count as time without node workers."""
    result = cloud.run("--agentbench-nodes=cloud", "--agentbench-nodes-wait=8s", SHOP)

    result.assert_outcomes(passed=3)
    output = result.stdout.str()
    assert "agentbench: node workers: one in the cloud, for 8 rollouts" in output
    assert "node workers (order 7) wait for machines: the cloud is far away" in output
    assert "node workers (order 7) have their machines after 10 s" in output
    assert 1 == output.count("node workers (order 7): the cloud is grey")
    (launch,) = launches(cloud)
    assert ("cloud", "order 7", "", ["the cloud is grey"]) == tuple(launch[name] for name in ("launcher", "id", "waiting", "problems"))
    assert launch["queue_s"] >= 8
    assert (cloud.root / "stopped").exists()
    assert {"local-1"} == {each["node"] for each in cloud.run_json["nodes"]}
    assert "cloud, order 7: all machines were there after 10 s; the cloud is grey" in (cloud.directory / "report.md").read_text()


def test_node_workers_that_cannot_be_started(cloud: Project) -> None:
    """If the launcher is refused, the session ends with its words, and it is stopped all the same."""
    result = cloud.run("--agentbench-nodes=cloud:refused", SHOP)

    result.assert_outcomes(errors=1)
    assert "no node workers can be started: the cloud is full" in result.stdout.str()
    assert (cloud.root / "stopped").exists()


def test_node_workers_that_cannot_be_ended(cloud: Project) -> None:
    """The user is told what is left. The results are complete, and the token is gone."""
    result = cloud.run("--agentbench-nodes=cloud:stuck", SHOP)

    result.assert_outcomes(passed=3)
    assert "not all that --agentbench-nodes=cloud:stuck has started can be ended: order 7 cannot be cancelled" in result.stdout.str()
    assert not (cloud.directory / TOKEN_FILE).exists()
