"""Downloads OpenThoughts' terminal tasks from the Hugging Face hub at a pinned revision: a folder of Harbor task directories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.hub_client import one_line_errors, optional
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.suites.datasets import harbor
from pytest_agentbench.suites.suite import TASK_FILE, Scenario

#: Short names of data sets. Any other data set with task directories is named as `owner/name`.
REPOSITORIES: Mapping[str, str] = {
    "tb-dev": "open-thoughts/OpenThoughts-TB-dev",
    "tblite": "open-thoughts/OpenThoughts-TBLite",
}

RECORD = "revision.json"  # file in the folder with the repository and commit of the download
NAMED = 3  # maximum number of tasks or folders that a message names


class TaskFolder(NamedTuple):
    """A local folder of task directories."""

    place: Path
    dataset: str  # name of the data set for reports


class OpenThoughtsSnapshot(NamedTuple):
    """The names of the files of a data set at one commit."""

    repository: str
    commit: str
    files: tuple[str, ...]


def download(dataset: str, revision: str, output: Path | None = None, token: str | None = None) -> TaskFolder:
    """Downloads a data set into a folder, prints a summary, and returns the folder with its task directories.

    An interrupted download resumes with the next call. The folder exists only after a complete download.

    Args:
        dataset: A short name or `owner/name`.
        revision: A commit, a tag or a branch.
        output: The folder for the data set. None stands for a folder under scenarios/openthoughts.
        token: The token for the hub.

    Raises:
        ConfigError: The name is unknown, the extra `hub` is missing, the repository has no tasks, or `output` contains something else.
        AgentbenchError: There is no network.
    """
    repository = _repository(dataset)
    folder = output or _usual_folder(dataset)
    snapshot = _snapshot(repository, revision, token)
    place = folder / _tasks_folder(snapshot)
    if _is_new(folder, snapshot):
        _fetch(snapshot, folder, token)
    return _summary(snapshot, place)


def local_tasks(dataset: str, output: Path | None = None) -> TaskFolder:
    """Returns the tasks in a folder that was downloaded before, and prints a summary. Raises ConfigError if there are none."""
    folder = output or _usual_folder(dataset)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: the folder does not exist; leave out --skip-download to download the data set into it")
    record = {"repository": _repository(dataset), "commit": "unknown", **_read_record(folder)}
    files = tuple(str(each.relative_to(folder)) for each in sorted(folder.rglob(TASK_FILE)))
    snapshot = OpenThoughtsSnapshot(record["repository"], record["commit"], files)
    return _summary(snapshot, folder / _tasks_folder(snapshot))


def _usual_folder(dataset: str) -> Path:
    return Path("scenarios/openthoughts", dataset.rpartition("/")[2].lower())


def _repository(dataset: str) -> str:
    if "/" not in dataset and dataset not in REPOSITORIES:
        raise ConfigError(f"{unknown_name('data set', dataset, REPOSITORIES)}, or the owner/name of a repository")
    return REPOSITORIES.get(dataset, dataset)


def _snapshot(repository: str, revision: str, token: str | None) -> OpenThoughtsSnapshot:
    hub = optional("huggingface_hub")
    with one_line_errors(repository, revision):
        info = hub.HfApi(token=token).dataset_info(repository, revision=revision)
    return OpenThoughtsSnapshot(repository, info.sha, tuple(sibling.rfilename for sibling in info.siblings))


def _tasks_folder(snapshot: OpenThoughtsSnapshot) -> Path:
    """Returns the folder with the task directories in the repository. Raises ConfigError if there is none, or more than one."""
    places = sorted({Path(name).parent.parent for name in snapshot.files if Path(name).name == TASK_FILE and len(Path(name).parts) > 1})
    if len(places) != 1:
        what = (
            f"tasks in {len(places)} folders ({', '.join(map(str, places[:NAMED]))})" if places else f"no task directory (no */{TASK_FILE})"
        )
        raise ConfigError(f"{snapshot.repository} at {snapshot.commit} has {what}; name a data set that has all its tasks in one folder")
    return places[0]


def _is_new(folder: Path, snapshot: OpenThoughtsSnapshot) -> bool:
    """Returns whether a snapshot must still be downloaded into a folder. Raises ConfigError if the folder contains something else."""
    if not folder.exists():
        return True
    record = _read_record(folder)
    if record == _record(snapshot):
        return False
    what = f"{record['repository']} at {record['commit']}" if record else "something else"
    raise ConfigError(f"{folder}: already exists and contains {what}; remove it, or name another folder with --output")


def _read_record(folder: Path) -> Any:
    """Returns the repository and commit of the download in a folder (the file RECORD), or an empty mapping if they are unknown."""
    record = folder / RECORD
    return read_json_file(record) if record.is_file() else {}


def _record(snapshot: OpenThoughtsSnapshot) -> dict[str, str]:
    return {"repository": snapshot.repository, "commit": snapshot.commit}


def _fetch(snapshot: OpenThoughtsSnapshot, folder: Path, token: str | None) -> None:
    """Downloads a snapshot into a temporary folder, and renames that to `folder` when it is complete.

    Files that an interrupted call has downloaded are not downloaded again.
    """
    hub = optional("huggingface_hub")
    unfinished = folder.with_name(f".{folder.name}-{snapshot.commit[:12]}")
    with one_line_errors(snapshot.repository, snapshot.commit):
        hub.snapshot_download(
            snapshot.repository, repo_type="dataset", revision=snapshot.commit, local_dir=unfinished, token=token, max_workers=4
        )
    (unfinished / RECORD).write_text(json.dumps(_record(snapshot), indent=2) + "\n", encoding="utf-8")
    unfinished.rename(folder)


def _summary(snapshot: OpenThoughtsSnapshot, place: Path) -> TaskFolder:
    """Prints the number of tasks and which of them are not supported, and returns their folder."""
    scenarios: Sequence[Scenario] = [*harbor.load(place)]
    print(f"{place}  {len(scenarios)} tasks  {snapshot.repository}  revision {snapshot.commit}")
    skipped = [each.id for each in scenarios if each.task and each.task.unsupported]
    if skipped:
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        print(f"skipped, because they need unsupported features: {len(skipped)} ({', '.join(skipped[:NAMED])}{more})")
    return TaskFolder(place, snapshot.repository.rpartition("/")[2])
