"""Takes secrets out of the logs of a run directory, in place: services write them themselves, so they cannot be redacted before."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_agentbench.redact import Redactor

_BLOCK = 1 << 20  # bytes that are looked at together
_OVERLAP = 1 << 14  # bytes that are looked at again with the next ones: no secret of several lines is longer


def scrub(directory: Path, redactor: Redactor) -> list[Path]:
    """The logs below a directory in which there was something. Raises OSError for one that cannot be written."""
    return [log for log in sorted(directory.rglob("*.log")) if log.is_file() and not log.is_symlink() and _scrub(log, redactor)]


def _scrub(log: Path, redactor: Redactor) -> bool:
    """Whether there was anything. No byte moves, so that whoever still writes the log can go on."""
    changed = False
    with log.open("r+b") as file:
        at, end = 0, file.seek(0, os.SEEK_END)
        while at < end:
            block = os.pread(file.fileno(), min(_BLOCK, end - at), at)
            block = block[: block.rfind(b"\n") + 1] or block  # a key that is cut would look like none
            clean = redactor.blanked(block)
            if clean != block:
                changed = True
                os.pwrite(file.fileno(), clean, at)
            at += len(block) - (_OVERLAP if at + len(block) < end and len(block) > _OVERLAP else 0)
    return changed
