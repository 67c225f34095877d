"""The end of a log, as errors and commands show it: without secrets."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_agentbench.lib.redact import Redactor

LOG_TAIL = 50  # lines of a log that an error carries
_BYTES = 1 << 16  # that are read for them, however long the log is


def tail(log: Path, lines: int = LOG_TAIL) -> list[str]:
    """Its last lines; none where there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return Redactor().plain(text).splitlines()[-lines:]


def indented(lines: list[str]) -> str:
    """As a block below a sentence."""
    return "\n".join(f"    {line}" for line in lines) or "    (nothing)"
