"""`agentbench download openthoughts --run`: from a local hub, or an existing folder, to a session of the suite."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.suites.datasets.openthoughts import REPOSITORIES
from tests.engines import engine
from tests.hub import COMMIT, Hub, hub_client
from tests.tasks import write_task
from tests.web import serving

Capture = pytest.CaptureFixture[str]

#: No sandbox here supports a GPU, so the test of such a task is skipped, and the session needs no sandbox.
UNSUPPORTED = {"task.toml": "[environment]\ngpus = 1\n"}


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("huggingface_hub"),
    reason="NOT TESTED: the extra `hub` is not installed: pip install 'pytest-agentbench[hub]'",
)
def test_from_the_hub_to_a_session(tmp_path: Path) -> None:
    """In an empty directory, one command checks the agent, downloads the tasks, writes the suite and runs it.

    The exit status is the session's.
    """
    task = write_task(tmp_path / "hub", "train", UNSUPPORTED)
    files = {str(each.relative_to(tmp_path / "hub")): each.read_bytes() for each in task.rglob("*") if each.is_file()}
    project = tmp_path / "project"
    project.mkdir()
    with serving(Hub("datasets", REPOSITORIES["tb-dev"], files)) as hub, engine(tmp_path, model="a-model") as address:
        agent = {"agent_name": "mine", "model": "a-model", "api_base": f"{address}/v1", "temperature": 0.6}
        (project / "agent_config.json").write_text(json.dumps(agent))
        words = ("download", "openthoughts", "--run", "--agent", "agent_config.json", "--", "--agentbench-limit=1")
        done = hub_client(hub.url, project, "-m", "pytest_agentbench.cli", *words)

    steps = (
        " speed ",
        f"scenarios/openthoughts/tb-dev  1 tasks  {REPOSITORIES['tb-dev']}  revision {COMMIT}",
        "wrote scenarios/openthoughts/suite.yaml",
        "agentbench: backend url",
        f"agentbench: {project}/agent_config.json: not used: agent_name, api_base",
        "test_task[train] SKIPPED",
        "data set    OpenThoughts-TB-dev: 1 scenarios",
    )
    places = [done.stdout.find(step) for step in steps]
    assert sorted(places) == places, done.stdout
    assert (6, True, False) == (done.returncode, places[0] >= 0, "now run" in done.stdout)


@pytest.mark.parametrize(
    ("rest", "is_checked"),
    [
        ((), True),
        (("--", "--agentbench-ab=set:concurrency=2|4", "--agentbench-ab-pairs"), True),
        (("--", "--agentbench-ab", "native=agent:terminal,text=agent:react"), True),
        (("--", "--agentbench-ab", "embedded,slower"), False),
        (("--", "--agentbench-ab=old=embedded,new=http://127.0.0.1:8000"), False),
        (("--", "-n", "8", "--agentbench-backend", "embedded"), False),
        (("--", "--agentbench-ab=one"), False),  # pytest refuses it
        (("--", "--agentbench-backend"), False),  # the same
    ],
)
def test_an_unreachable_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, rest: tuple[str, ...], is_checked: bool
) -> None:
    """If the agent's server is unreachable, nothing is downloaded or run. It is not used if arguments for pytest choose other servers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent_config.json").write_text(json.dumps({"api_base": "http://nowhere.invalid:8000/v1"}))

    status = main(["download", "openthoughts", "--run", "--skip-download", "--agent", "agent_config.json", *rest])
    error = capsys.readouterr().err

    expected = (1, True, False) if is_checked else (4, False, True)
    assert expected == (status, "nowhere.invalid" in error, "the folder does not exist" in error)
    assert ["agent_config.json"] == [each.name for each in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--agent", "a.json"), "--agent and pytest options apply only to a run; add --run"),
        (("--", "-n", "8"), "--agent and pytest options apply only to a run; add --run"),
        (
            ("--skip-download",),
            "scenarios/openthoughts/tb-dev: the folder does not exist; leave out --skip-download to download",
        ),
        (("--skip-download", "--output", "."), "at unknown has no task directory (no */task.toml)"),
    ],
)
def test_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: tuple[str, ...], sentence: str) -> None:
    monkeypatch.chdir(tmp_path)

    status = main(["download", "openthoughts", *words])

    assert (4, True) == (status, sentence in capsys.readouterr().err)
