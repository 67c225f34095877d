"""run.json: writes the Run of a session, reads it, and finds it by its name."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.codec import plain, read
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.records import Json
from pytest_agentbench.runs.contents import SCHEMA, Run
from pytest_agentbench.runs.directory import directory_with

FILE = "run.json"


def write_run(run: Run, directory: Path) -> Path:
    """Writes run.json; a reader never sees half of it."""
    return write_whole(directory / FILE, json.dumps(plain(run), indent=2, ensure_ascii=False) + "\n", errors="backslashreplace")


def redacted(run: Run, redact: Callable[[str], str]) -> Run:
    """The run as it may be written: a command, or the end of a log, may hold secrets."""
    return read(Run, json.loads(redact(json.dumps(plain(run)))))


def read_run(directory: Path) -> Run:
    """The run of a directory; raises ConfigError for a run.json that cannot be read, with what is wrong and where."""
    path = directory / FILE
    data = read_json_file(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ConfigError(_of_another_schema(path, data if isinstance(data, dict) else {}))
    try:
        return read(Run, data)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _of_another_schema(path: Path, data: Json) -> str:
    """What to do about a run of another version."""
    schema, command = data.get("schema"), data.get("command")
    if not isinstance(schema, str) or not schema.startswith(SCHEMA.partition("/")[0]):
        return f"{path} is no run of schema {SCHEMA}"
    again = shlex.join(map(str, command)) if isinstance(command, list) and command else "pytest"
    return f"{path} is of schema {schema}, and this version reads {SCHEMA}; `{again}` makes it again"


def find_run(name: str, reports: Path) -> Path:
    """The directory of a finished run: its path, that of its run.json, or its name under the reports; raises ConfigError.

    Of several that the user has given one name the newest is meant.
    """
    return directory_with(FILE, name, reports, "it is no run directory, or its session did not end")
