"""The real NVIDIA Dynamo whose router loses a worker that still runs, and its sessions at the boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import environments_folder
from pytest_agentbench.backends.ready import missing_workers
from pytest_agentbench.records import Endpoint
from tests.real.booted_stack import booted

pytestmark = pytest.mark.timeout(180)


def test_a_worker_leaves_the_discovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo forgets a worker whose files of the discovery are gone, and answers calls with the other one. The count shows it.

    At the boot, all test sessions stay with their worker, which the answers name, so `sticky: required` accepts the stack.
    """
    monkeypatch.setenv("AGENTBENCH_ENVS", str(environments_folder()))
    with booted("dynamo-mocker", tmp_path, [("settings.speedup", 100), ("labels.sticky", "required")]) as stack:
        sessions = stack.boot["sessions"]
        listed = [*stack.home.glob("run/discovery/v1/mdc/*")]
        endpoint, workers = Endpoint(stack.url, "tiny"), len(listed)
        before = missing_workers(endpoint, {"aggregated": workers})
        for file in stack.home.glob(f"run/discovery/v1/*/*{listed[0].name[-16:]}"):
            file.unlink()
        after = missing_workers(endpoint, {"aggregated": workers})
        answer = stack.chat("Hello")

    assert (6, 6, 0) == (sessions["sessions"], sessions["stayed"], sessions["unknown"])
    assert ("", True) == (before, workers > 1)
    assert after.endswith(f"ready workers: {workers - 1} of {workers} aggregated")
    assert answer["choices"]
