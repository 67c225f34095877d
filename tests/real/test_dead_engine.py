"""A router whose engine has died, in a session: its rollouts get no score."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_agentbench.backends.machine.ports import Reserved
from pytest_agentbench.backends.machine.virtual_environments import environments_folder, resolve_python
from pytest_agentbench.errors import MissingError
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from tests.project import Project
from tests.real.booted_stack import ROOT
from tests.robustness.processes import Background
from tests.small_stacks import PASSES, is_gone
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(240)

ENVIRONMENTS = environments_folder()  # read here, because the sessions of tests have another HOME


METRICS = ("--metrics", "--metrics-interval=0.5", "--scheduler-interval=0.5")


class Routed(NamedTuple):
    """The real router in front of the built-in engine. Neither belongs to a session."""

    url: str
    engine: Child


@contextmanager
def routed(folder: Path, *options: str) -> Iterator[Routed]:
    try:
        python = resolve_python("thunderagent", ROOT)
    except MissingError as error:
        pytest.skip(f"NOT TESTED: {error}")
    engine = Child("pytest_agentbench.engine", {"policy": "lexical", "model": "embedded", "ttft_ms": 200}, folder / "engine.log")
    reserved = Reserved()
    port = reserved.take()
    reserved.close()
    command = [
        str(python),
        "-m",
        "ThunderAgent",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--backends=http://127.0.0.1:{engine.ready(Listening).port}",
    ]
    with (folder / "router.log").open("wb") as log:
        router = subprocess.Popen([*command, *options], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        wait_for(lambda: not is_gone(url), "the router")
        yield Routed(url, engine)
    finally:
        engine.stop()
        router.terminate()
        try:
            router.wait(5)
        except subprocess.TimeoutExpired:  # the router waits for the calls that it holds
            router.kill()
            router.wait(5)


@pytest.mark.parametrize(("options", "error"), [(METRICS, "timeout_call"), ((), "server_error")], ids=["holds new calls", "fails them"])
def test_an_engine_dies(project: Project, monkeypatch: pytest.MonkeyPatch, options: Sequence[str], error: str) -> None:
    """With --metrics the router holds calls of new programs for half an hour, without it answers 500. Neither leads to a score.

    Finished rollouts are kept, our own time limit for a call ends the wait, and all programs are released.
    """
    monkeypatch.setenv("AGENTBENCH_ENVS", str(ENVIRONMENTS))
    with routed(project.root, *options) as router:
        project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "model": "embedded", "labels": "thunderagent"}))
        project.suite(scenarios=6, test=PASSES)
        background = Background(
            project, "scenarios/shop", "--agentbench-backend=router", "--agentbench-concurrency=2", "--agentbench-budget-call=3s"
        )
        try:
            background.in_the_middle()
            os.kill(router.engine.process.pid, signal.SIGKILL)
            status = background.ended(180)
        finally:
            background.clean_up()
    rollouts = background.rollouts
    spoilt = [rollout for rollout in rollouts if rollout.status != "ok"]
    told = json.loads((background.directory / "run.json").read_text())["labels"]

    assert 6 == status, background.output
    assert (6, {"infra_error"}) == (len(rollouts), {rollout.status for rollout in spoilt})
    assert [{}] * len(spoilt) == [rollout.scores for rollout in spoilt]
    assert {error} == {rollout.calls[-1].error_kind for rollout in spoilt}
    assert (told["labelled"], 0, 0) == (told["released"], told["failed"], told["left"])
