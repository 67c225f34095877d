"""Reads data sets: a format, which suite.yaml names, converts data to scenarios. Built-in formats are modules here, listed in FORMATS."""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import AgentbenchError, ConfigError, MissingData, did_you_mean
from pytest_agentbench.lib.file_system import folder_sha256
from pytest_agentbench.lib.user_code import TimeIsOver, check_takes, interrupted_after, load_object, options_of, with_options
from pytest_agentbench.suites.datasets import hle
from pytest_agentbench.suites.datasets.loaded_scenarios import PackagedData, Selection, check_json, check_scenarios
from pytest_agentbench.suites.suite import DatasetInfo, Scenario

if TYPE_CHECKING:
    from pytest_agentbench.suites.spec import DatasetSpec

#: Built-in formats. Any other name is an import path, such as `my_package.formats:load` or `./reader.py:load`.
#:
#: A format is a function (data file, and the tools file if there is one) -> scenarios, or a Selection of them. Keyword-only arguments
#: are its options. It raises a ConfigError that names the file and the error. If its argument is called `folder`, it reads a folder of
#: data. Without arguments it reads an installed package and returns PackagedData; it raises MissingData if that is not installed.
FORMATS: Mapping[str, str] = {
    "agent-leaderboard": "pytest_agentbench.suites.datasets.agent_leaderboard:load",
    "bfcl": "pytest_agentbench.suites.datasets.bfcl:load",
    "harbor": "pytest_agentbench.suites.datasets.harbor:load",
    "hle": "pytest_agentbench.suites.datasets.hle:load",
}

#: Formats whose public data cannot be shipped -> how to download the data. A suite of such a format without its file is skipped.
GATED: Mapping[str, str] = {"hle": hle.MISSING}

#: Parameters of a format. The tools file is passed only if suite.yaml names one.
PARAMETERS = ("file", "tools_file")
FOLDER = "folder"  # only parameter of a format that reads a folder

#: Time limit for importing a suite's own format (large frameworks need a minute), and for its reading of the data, seconds.
LIMIT = 300.0

IGNORED_FILES = frozenset({"__pycache__", ".git", ".cache"})  # files of Python, git and the hub's client in a folder of data


def read_dataset(file: Path, spec: DatasetSpec, *, without_tools: bool = False) -> tuple[tuple[Scenario, ...], DatasetInfo]:
    """Returns the scenarios of a suite.yaml and their origin. The data are files in the suite's folder, or an installed package.

    Args:
        file: The suite.yaml.
        spec: The key `dataset`.
        without_tools: Whether scenarios may have no tools of their own.

    Raises:
        ConfigError: The format or the data are wrong.
        MissingData: The data must be downloaded or installed first.
    """
    try:
        with _limited(spec.format):
            reader, paths = _reader(spec, file.parent)
    except ConfigError as error:
        raise type(error)(f"{file}: {error}") from error
    try:
        with _limited(spec.format, f"{file}: "):
            data = _call_reader(reader, spec.format, paths, file.parent)
    except MissingData as error:
        raise MissingData(f"{file}: {error}") from error
    if paths:  # The data of a package have a known hash, so they need no checks.
        check_scenarios(data.scenarios, paths[0], without_tools=without_tools)
    if spec.format not in FORMATS:
        check_json(data.scenarios, file)
    label_source = ", ".join(sorted({str(each.metadata.get("label_source", "unknown")) for each in data.scenarios}))
    name, size = spec.name or data.package, len(data.scenarios)
    info = DatasetInfo(name, spec.format, spec.file or "", data.sha256, label_source, size, data.version, dict(data.left_out))
    return data.scenarios, info


@contextmanager
def _limited(format: str, where: str = "") -> Iterator[None]:
    """Limits the time of the block to LIMIT seconds if it runs a data format (a function that reads data) of the suite itself.

    Raises ConfigError if it takes longer. Built-in formats have no limit, because their data may be large.
    """
    if format in FORMATS:
        yield
        return
    try:
        with interrupted_after(LIMIT):
            yield
    except TimeIsOver:
        raise ConfigError(f"{where}dataset format {format!r} did not end within {LIMIT:g} s; it should only read the data") from None


def _reader(spec: DatasetSpec, folder: Path) -> tuple[Callable[..., Any], list[Path]]:
    """Returns the function that reads the data format named in `spec`, and the paths of the data to call it with."""
    what = f"dataset format {spec.format!r}"
    reader = load_object("dataset format", spec.format, FORMATS, folder)
    if not callable(reader):
        raise ConfigError(f"{what} is a {type(reader).__name__}, must be a function (file) -> scenarios")
    named = [folder / name for name in (spec.file, spec.tools) if name]
    reader = with_options("dataset format", spec.format, reader, spec.options)
    if set(inspect.signature(reader).parameters) <= {*options_of(reader)}:
        if named:
            raise ConfigError(f"dataset: format {spec.format} reads an installed package; leave `file` and `tools` out")
        return reader, []
    if spec.file is None:
        raise ConfigError("the key 'dataset.file' is missing; set it to the path of the data, relative to suite.yaml")
    if FOLDER in inspect.signature(reader).parameters:
        check_takes(what, reader, [FOLDER])
        return reader, [_data_folder(spec, folder)]
    for path in named:
        if not path.is_file() and spec.format in GATED:
            raise MissingData(f"the data file {path} does not exist: {GATED[spec.format]}")
        if not path.is_file():
            fault = "is a folder" if path.is_dir() else "does not exist"
            near = did_you_mean(path.name, [each.name for each in path.parent.glob("*") if each.is_file()])
            raise ConfigError(f"the data file {path} {fault}{near}; see the suite's README.md for where it comes from")
    check_takes(what, reader, PARAMETERS[: len(named)])
    return reader, named


def _data_folder(spec: DatasetSpec, folder: Path) -> Path:
    """Returns the path of the data, for a format that reads a folder. Raises ConfigError if the folder does not exist."""
    assert spec.file is not None
    if spec.tools:
        raise ConfigError(f"dataset: format {spec.format} reads a folder; leave `tools` out")
    if not (path := folder / spec.file).is_dir():
        raise ConfigError(f"{path}: the data folder does not exist; see the suite's README.md for where it comes from")
    return path


def _call_reader(reader: Callable[..., Any], format: str, paths: Sequence[Path], folder: Path) -> PackagedData:
    """Calls the function of a data format with the paths of the data, and returns the scenarios with the hash of the data.

    Raises ConfigError if the function fails. If it is in a file of the suite, that file is part of the hash, because the scenarios
    depend on it.
    """
    try:
        data = reader(*paths)
        if not paths and isinstance(data, PackagedData):
            return data
        selection = data if isinstance(data, Selection) else Selection(tuple(data), {})
    except AgentbenchError:
        raise
    except Exception as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename != __file__]
        place = f" ({Path(frames[0].filename).name}:{frames[0].lineno})" if frames else ""
        raise ConfigError(f"dataset format {format!r} raised {type(error).__name__}: {' '.join(str(error).split())}{place}") from error
    if not paths:
        raise ConfigError(f"dataset format {format!r} takes no file, so it must return PackagedData, not {type(data).__name__}")
    own = folder / format.partition(":")[0]
    sha256 = _sha256([*paths, *([own] if own.is_file() else [])])
    return PackagedData(paths[0].stem, "", sha256, selection.scenarios, selection.left_out)


def _sha256(paths: Iterable[Path]) -> str:
    """Returns one hash of the content of files and folders. IGNORED_FILES in folders do not count."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(folder_sha256([path], path, skips=IGNORED_FILES.__contains__).encode() if path.is_dir() else path.read_bytes())
    return digest.hexdigest()
