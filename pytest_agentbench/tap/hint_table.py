"""Files of learnt hints: what to expect of the calls of a role, by their number in the session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.metrics.call_hints import HintRow

SCHEMA = "agentbench-hints/1"


@dataclass(frozen=True)
class HintFile:
    """The content of a file of learnt hints."""

    schema: str  # version of the format
    run: str  # name of the run from which they were learnt
    rows: tuple[HintRow, ...]  # by role and turn


def write_table(file: Path, run: str, rows: Sequence[HintRow]) -> None:
    """Writes a file of learnt hints, with one row a line."""
    import json

    lines = ",\n".join(f"  {json.dumps(codec.plain(row))}" for row in rows)
    write_whole(file, f'{{\n"schema": {json.dumps(SCHEMA)},\n"run": {json.dumps(run)},\n"rows": [\n{lines}\n]\n}}\n')


def read_table(file: Path) -> tuple[HintRow, ...]:
    """Reads a file of learnt hints. Raises ConfigError if it does not exist, is not valid, or is of another version."""
    advice = "write one with `agentbench hints learn RUN -o FILE`"
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; {advice}")
    content = read_json_file(file)
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        raise ConfigError(f"{file}: is no file of hints of the version {SCHEMA}, but of {found!r}; {advice}")
    try:
        rows = codec.read(HintFile, content, "hints").rows
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; {advice}") from error
    return tuple(sorted(rows, key=lambda row: (row.role, row.turn)))
