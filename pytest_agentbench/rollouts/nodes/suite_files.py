"""Packs the files of suites for node workers, and unpacks them on a node, where the settings of a session then refer to them.

The archive has the path of each file on the controller's host below FILES, so that files of several suites find each other by relative
paths. Data that the scenarios contain are left out. Code that suites import from elsewhere does not travel; the archive has its hashes
(`outside_code`).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest_agentbench
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.user_code import search_path
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.nodes.outside_code import code_sha256, named_code, outside_code, outside_problem, packages_above
from pytest_agentbench.rollouts.protocol import PoolSettings
from pytest_agentbench.suites.suite import SUITE_FILE, PoolSuite, Scenario, is_task_directory

SUITES = "suites"  # folder of a node worker into which the archive is unpacked
FILES = "files"  # folder of the archive with the files
OUTSIDE = "outside_code.json"  # file of the archive with the hashes of code that does not travel
MOST_BYTES = 128 << 20  # bytes of all files together at most, before they are compressed
SMALL = 1 << 20  # bytes of a data file that travels in any case, because code of the suite may read it
LARGEST = 5  # number of files that the error about too many bytes lists
CHANGED_AT = 946_684_800  # modification time of all files on the node: 2000-01-01, which each archive format can express
CACHES = ("__pycache__", "node_modules")  # folders that are left out; names with a dot at the beginning are left out, too


@cache
def package_hash() -> str:
    """Returns the hash of all Python files of this package. It is computed once, so it shows the files of the first call."""
    root = Path(pytest_agentbench.__file__).parent
    return code_sha256((file for file in root.rglob("*.py") if file.relative_to(root).parts[0] != "shipped"), root)


def pack(suites: Mapping[str, PoolSuite]) -> bytes:
    """Returns an archive (tar.gz) with the files that rollouts of these suites may read. The same files make the same archive.

    Blocks for up to several seconds. Raises ConfigError if the files are too large, or if a link leads to a file that does not travel.
    """
    roots = _roots(suites.values())
    paths = _paths(roots, suites)
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 6, packed, mtime=0) as compressed, tarfile.open(fileobj=compressed, mode="w") as archive:
        hashes = json.dumps(outside_code(suites), sort_keys=True).encode()
        archive.addfile(_member(OUTSIDE, 0o644, size=len(hashes)), io.BytesIO(hashes))
        for path in sorted(paths):
            _add(archive, path, roots)
        for path in sorted(_given_paths(suites.values()) - paths):
            if path != path.resolve():  # A part of the path is a link, so settings and files have different paths.
                archive.addfile(_member(f"{FILES}{path}", 0o777, tarfile.SYMTYPE, target=os.path.relpath(path.resolve(), path.parent)))
    return packed.getvalue()


def check(suites: Mapping[str, PoolSuite]) -> None:
    """Raises ConfigError if `pack` would, except for files that cannot be read. Reads no file completely."""
    roots = _roots(suites.values())
    for path in _paths(roots, suites):
        if path.is_symlink():
            _target(path, roots)


def unpack(body: bytes, folder: Path) -> None:
    """Unpacks an archive of `pack` into an empty folder, with the modes that the files have on the controller's host."""
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
        archive.extractall(folder, filter=_with_modes)  # noqa: S202 - the filter refuses members that would be outside of the folder


def at_node(settings: PoolSettings, folder: Path, sandboxes: int | None) -> PoolSettings:
    """Returns the settings of a session for this host, where the suites' files were unpacked into `folder`.

    Code is found first among the suites' files, then where this process finds it, and then in folders of the controller that this host
    has, too. `sandboxes` is the maximum number of open sandboxes on this host; None: by its cores.
    """
    from pytest_agentbench.sandbox.factory import default_count

    suites = {name: _suite_at_node(suite, folder) for name, suite in settings.suites.items()}
    unpacked = [str(place) for each in settings.sys_path if (place := _place(each, folder)).is_dir()]
    own = search_path()
    shared = [each for each in settings.sys_path if each not in own and _is_trusted(Path(each))]
    return replace(settings, suites=suites, sys_path=(*unpacked, *own, *shared), sandboxes=sandboxes or default_count())


def at_controller(rollout: Rollout, folder: Path) -> Rollout:
    """Returns a record in which settings, errors and logs name files of suites by their paths on the controller's host.

    `folder` is where the files were unpacked.
    """
    prefix = str(folder / FILES)
    settings = {name: _without(value, prefix) for name, value in rollout.settings.items()}
    errors = {name: error.replace(prefix, "") for name, error in rollout.score_errors.items()}
    reason, log = rollout.reason.replace(prefix, ""), rollout.log.replace(prefix, "")
    return replace(rollout, settings=settings, score_errors=errors, reason=reason, log=log)


def _without(value: Any, prefix: str) -> Any:
    """Returns a JSON value without a prefix of paths in its texts."""
    match value:
        case str():
            return value.replace(prefix, "")
        case list():
            return [_without(each, prefix) for each in value]
        case dict():
            return {name: _without(each, prefix) for name, each in value.items()}
        case _:
            return value


def code_problem(settings: PoolSettings, folder: Path, node: str) -> str:
    """Returns a sentence if code that the suites import from elsewhere is missing or different on this host, else an empty text.

    `settings` are those of `at_node`, and `folder` is where the files were unpacked.
    """
    return outside_problem(json.loads((folder / OUTSIDE).read_bytes()), settings.sys_path, node)


def _given_paths(suites: Iterable[PoolSuite]) -> set[Path]:
    """Returns the folders of suites and tasks as the settings name them. A part of their paths may be a link."""
    return {path for suite in suites for path in (suite.folder, *_task_folders(suite))}


def _task_folders(suite: PoolSuite) -> set[Path]:
    return {Path(each.task.folder) for each in suite.scenarios if each.task and each.task.folder}


def _roots(suites: Iterable[PoolSuite]) -> list[Path]:
    """Returns the folders that travel: those of the suites, of their tasks, and working directories of their programs; none in another."""
    from pytest_agentbench.agents.factory import paths_of

    roots = {path.resolve() for path in _given_paths(suites)}
    for suite in suites:
        for variant in ("default", *suite.variants):
            options = paths_of(suite.agent_of(variant), suite.folder)
            roots |= {(suite.folder / path).resolve() for path in options if not Path(path).is_absolute()}
    return sorted(root for root in roots if not any(root != other and root.is_relative_to(other) for other in roots))


def _paths(roots: Iterable[Path], suites: Mapping[str, PoolSuite]) -> set[Path]:
    """Returns all files, links and folders that travel. Raises ConfigError if they are too large."""
    paths = {path for root in roots for path in _travelling(root, suites.values())} | {*_code_elsewhere(suites.values(), roots)}
    _check_size(paths)
    return paths


def _travelling(root: Path, suites: Iterable[PoolSuite]) -> Iterator[Path]:
    """Yields the files, links and folders in a root that travel. In the folder of a task, nothing is left out."""
    tasks = {path.resolve() for suite in suites for path in _task_folders(suite)}
    left_out = {path for suite in suites for path in _unread_data(suite)}

    def walk(folder: Path, *, in_task: bool) -> Iterator[Path]:
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            raise ConfigError(f"{folder} cannot be sent to node workers: {error.strerror}") from error
        for path in entries:
            if not in_task and (path.name.startswith(".") or path.name in CACHES or path in left_out):
                continue
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                if not in_task and (_is_environment(path) or (is_task_directory(path) and path not in tasks)):
                    continue
                yield path
                yield from walk(path, in_task=in_task or path in tasks)
            elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                yield path

    yield root
    yield from walk(root, in_task=root in tasks)


def _is_environment(folder: Path) -> bool:
    """Returns whether a folder is a virtual environment, which does not work in another place."""
    return (folder / "pyvenv.cfg").is_file()


def _unread_data(suite: PoolSuite) -> Iterator[Path]:
    """Yields the data files of a suite that only the controller reads: the scenarios contain their data, and no code names the file.

    Small files are not among them, because code may find them without naming them.
    """
    from pytest_agentbench.lib.config import load_yaml

    folder = suite.folder.resolve()
    file = folder / SUITE_FILE
    dataset = load_yaml(file).get("dataset") if file.is_file() else None
    named = [str(dataset[key]) for key in ("file", "tools") if dataset.get(key)] if isinstance(dataset, dict) else []
    for path in (folder / name for name in named):
        if not path.is_file() or not (path.is_symlink() or path.stat().st_size > SMALL):
            continue
        if not any(path.name.encode() in code.read_bytes() for code in folder.rglob("*.py")):
            yield path


def _code_elsewhere(suites: Iterable[PoolSuite], roots: Iterable[Path]) -> Iterator[Path]:
    """Yields Python files outside of the folders that travel: of packages around them, and those that suites name by a relative path.

    All Python files beside the latter travel, too.
    """
    for suite in suites:
        yield from packages_above(suite.folder.resolve())
        for name in named_code(suite):
            file = (suite.folder / name).resolve()
            if name.endswith(".py") and not Path(name).is_absolute() and not any(file.is_relative_to(root) for root in roots):
                yield from (each for each in file.parent.glob("*.py") if each.is_file() and not each.is_symlink())


def _check_size(paths: Iterable[Path]) -> None:
    sizes = {path: path.lstat().st_size for path in paths if path.is_file() and not path.is_symlink()}
    if (size := sum(sizes.values())) <= MOST_BYTES:
        return
    largest = sorted(sizes, key=lambda path: -sizes[path])[:LARGEST]
    raise ConfigError(
        f"the files of the suites have {size / 1e6:,.0f} MB, and at most {MOST_BYTES / 1e6:,.0f} MB are sent to node workers; the largest "
        f"are {', '.join(f'{path} ({sizes[path] / 1e6:,.1f} MB)' for path in largest)}: move files that rollouts do not read out of the "
        "suite's folder, and put large ones at the same absolute path on each node"
    )


def _add(archive: tarfile.TarFile, path: Path, roots: Iterable[Path]) -> None:
    name = f"{FILES}{path}"
    mode = stat.S_IMODE(path.lstat().st_mode) & 0o777
    if path.is_symlink():
        archive.addfile(_member(name, 0o777, tarfile.SYMTYPE, target=_target(path, roots)))
    elif path.is_dir():
        archive.addfile(_member(name, mode | 0o700, tarfile.DIRTYPE))
    else:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be sent to node workers: {error.strerror}") from error
        archive.addfile(_member(name, mode, size=len(content)), io.BytesIO(content))


def _target(link: Path, roots: Iterable[Path]) -> str:
    """Returns the relative path to which a link leads on the node. Raises ConfigError if it leads to a place that does not travel."""
    written, target = link.readlink(), link.resolve()
    if not any(target.is_relative_to(root) for root in roots):
        raise ConfigError(
            f"{link}: is a link that leads to {target}, which is not sent to node workers; replace it by a copy of what it leads to, or "
            "have the suite use an absolute path that each node has, too"
        )
    return os.path.relpath(target, link.parent) if written.is_absolute() else str(written)


def _member(name: str, mode: int, kind: bytes = tarfile.REGTYPE, *, size: int = 0, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.type, member.size, member.linkname, member.mtime = mode, kind, size, target, CHANGED_AT
    return member


def _with_modes(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Filters members as `data` does, but keeps all mode bits but those for special users, because images of tasks depend on them."""
    checked = tarfile.data_filter(member, folder)
    return checked and checked.replace(mode=member.mode & 0o777, deep=False)


def _suite_at_node(suite: PoolSuite, folder: Path) -> PoolSuite:
    scenarios = tuple(_scenario_at_node(each, folder) for each in suite.scenarios)
    return replace(suite, folder=_place(suite.folder, folder), scenarios=scenarios)


def _scenario_at_node(scenario: Scenario, folder: Path) -> Scenario:
    if scenario.task is None or not scenario.task.folder:
        return scenario
    return replace(scenario, task=replace(scenario.task, folder=str(_place(scenario.task.folder, folder))))


def _place(path: str | Path, folder: Path) -> Path:
    """Returns where a path of the controller's host is in the unpacked archive."""
    return Path(f"{folder / FILES}{path}")


def _is_trusted(folder: Path) -> bool:
    """Returns whether only this user and root can have put code into a folder."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.getuid()) and not status.st_mode & 0o002
