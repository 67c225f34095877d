"""The download of task directories: the hub's real client with a hub on loopback or without one."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.suites.datasets.openthoughts import REPOSITORIES
from pytest_agentbench.suites.folder import load_suite
from tests.hub import COMMIT, Hub, hub_client
from tests.project import ROOT
from tests.tasks import FILES
from tests.web import serving

REPOSITORY = REPOSITORIES["tb-dev"]

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("huggingface_hub"),
    reason="NOT TESTED: the extra `hub` is not installed: pip install 'pytest-agentbench[hub]'",
)


TASKS = {f"{name}/{path}": text.encode() for name in ("hello", "world") for path, text in FILES.items()}
OTHERS = {".gitattributes": b"* text", "README.md": b"tasks", "__pycache__/x.pyc": b""}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub("datasets", REPOSITORY, {**TASKS, **OTHERS})) as server:
        yield server


def download(host: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return hub_client(host, folder, "-m", "pytest_agentbench.cli", "download", "openthoughts", *arguments)


def from_hub(hub: Hub, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return download(hub.url, folder, "--revision", "v1", *arguments)


def test_a_download(hub: Hub, tmp_path: Path) -> None:
    """The files at the commit of the revision are stored beside the suite, with a record of the commit.

    The output has the command that runs them.
    """
    hub.files["train/task.toml"] = b"[environment]\ngpus = 1\n"
    done = from_hub(hub, tmp_path)

    folder = tmp_path / "scenarios/openthoughts/tb-dev"
    assert 0 == done.returncode, done.stderr
    assert [
        f"scenarios/openthoughts/tb-dev  3 tasks  {REPOSITORY}  revision {COMMIT}",
        "skipped, because they need unsupported features: 1 (train)",
        f"now run: pytest -m openthoughts --agentbench-set dataset.file={folder} --agentbench-set dataset.name=OpenThoughts-TB-dev",
    ] == done.stdout.splitlines()
    assert {"repository": REPOSITORY, "commit": COMMIT} == json.loads((folder / "revision.json").read_text())
    changes = [("dataset.file", str(folder)), ("dataset.name", "OpenThoughts-TB-dev")]
    suite = load_suite(ROOT / "scenarios/openthoughts/suite.yaml", changes)
    assert ["hello", "train", "world"] == [each.id for each in suite.scenarios]
    assert "OpenThoughts-TB-dev" == suite.dataset.name


@pytest.mark.slow
def test_an_interrupted_download_is_resumed(hub: Hub, tmp_path: Path) -> None:
    """A folder with data exists only after all files were fetched.

    A second call does not fetch the first files again, and a third call fetches nothing.
    """
    hub.broken = "world/tests/test.sh"
    broken = from_hub(hub, tmp_path)

    assert (1, 1) == (broken.returncode, len(broken.stderr.splitlines()))
    assert f"provide {REPOSITORY} at revision {COMMIT}: " in broken.stderr
    assert not (tmp_path / "scenarios/openthoughts/tb-dev").exists()
    before, hub.fetched, hub.broken = {*hub.fetched}, [], ""
    assert 0 == from_hub(hub, tmp_path).returncode
    assert {name for name, content in hub.files.items() if content} == before | {*hub.fetched}  # empty files are not fetched
    assert hub.fetched
    assert set() == before & {*hub.fetched}
    hub.fetched = []
    again = from_hub(hub, tmp_path)
    assert (0, []) == (again.returncode, hub.fetched)
    assert "2 tasks" in again.stdout


@pytest.mark.slow
def test_existing_folders_are_not_replaced(hub: Hub, tmp_path: Path) -> None:
    """Data of another revision is not replaced, because a run may have used it. A folder with other files is not touched."""
    folder = tmp_path / "mine"
    folder.mkdir()
    done = from_hub(hub, tmp_path, "--output", "mine")

    said = "agentbench: mine: already exists and contains something else; remove it, or name another folder with --output\n"
    assert (4, said) == (done.returncode, done.stderr)
    (folder / "revision.json").write_text(json.dumps({"repository": REPOSITORY, "commit": "older"}))
    assert f"mine: already exists and contains {REPOSITORY} at older; " in from_hub(hub, tmp_path, "--output", "mine").stderr


@pytest.mark.slow
def test_tasks_in_a_folder_of_the_repository(hub: Hub, tmp_path: Path) -> None:
    """Tasks in a subfolder of the repository are downloaded.

    A repository without tasks, or with several such folders, is refused before anything is fetched.
    """
    hub.files = {f"tasks/{name}": content for name, content in hub.files.items()}

    assert from_hub(hub, tmp_path).stdout.startswith("scenarios/openthoughts/tb-dev/tasks  2 tasks")
    hub.files["old/one/task.toml"] = b""
    several = from_hub(hub, tmp_path, "--output", "other")
    assert (
        4,
        f"agentbench: {REPOSITORY} at {COMMIT} has tasks in 2 folders (old, tasks); name a data set that has all its tasks in one folder\n",
    ) == (
        several.returncode,
        several.stderr,
    )
    hub.files = {"README.md": b"no tasks"}
    assert "has no task directory (no */task.toml); " in from_hub(hub, tmp_path, "--output", "other").stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (
            ("--dataset", "tb-light"),
            4,
            "no data set 'tb-light' (did you mean 'tblite'?); known: tb-dev, tblite, or the owner/name of a repository",
        ),
        (("--revision", "v2"), 1, f"refuses {REPOSITORY} at revision v2: RevisionNotFoundError: "),
        (("--dataset", "somebody/tasks"), 1, "refuses somebody/tasks at revision v1: "),
    ],
)
def test_unknown_names(hub: Hub, tmp_path: Path, arguments: tuple[str, ...], status: int, sentence: str) -> None:
    """An unknown data set, revision or repository gives an error of one sentence, and nothing is written."""
    done = from_hub(hub, tmp_path, *arguments)

    assert status == done.returncode
    assert 1 == len(done.stderr.splitlines())
    assert sentence in done.stderr
    assert not (tmp_path / "scenarios").exists()


@pytest.mark.slow
def test_no_network(tmp_path: Path) -> None:
    """If the hub is not reachable, the error is one line with the host, and nothing is written."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening, so the port stays reserved and refuses connections
        host = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = download(host, tmp_path)

    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert done.stderr.startswith(f"agentbench: {host} is unreachable, so it cannot provide {REPOSITORY} at revision main: ")
    assert not (tmp_path / "scenarios").exists()
