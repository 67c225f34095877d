"""sessions.jsonl: a line for each session that worked on a run, written when it starts; what lies where in a run of several."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_file import bounded_json
from pytest_agentbench.records import Json

FILE = "sessions.jsonl"


@dataclass(frozen=True)
class Session:
    """One session of a run."""

    number: int  # counted from 1
    started_at: str  # ISO 8601
    command: tuple[str, ...]
    concurrency: int = 1  # rollouts in flight at most
    backend: Json = field(default_factory=dict)  # what decides how it answers
    suites: Json = field(default_factory=dict)  # suite -> agents and scorers


def append_session(directory: Path, session: Session, redact: Callable[[str], str]) -> None:
    """Writes a session down."""
    with (directory / FILE).open("ab+") as file:
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")  # a line that was torn by a kill
        file.write(redact(json.dumps(codec.plain(session))).encode(errors="backslashreplace") + b"\n")


def read_sessions(directory: Path) -> list[Session]:
    """The sessions of a run; what was torn by a kill is left out."""
    path = directory / FILE
    sessions = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            sessions.append(codec.read(Session, bounded_json(line)))
        except ValueError:
            continue
    return sessions


def folder_of(directory: Path, session: int) -> Path:
    """Where logs and samples of a session are: the run directory itself, or a folder of its own in it for those that went on."""
    return directory if session == 1 else directory / f"session-{session}"
