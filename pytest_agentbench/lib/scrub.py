"""Takes secrets out of the logs of a run directory, in place: services write them themselves, so they cannot be redacted before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.lib.redact import Redactor

_BLOCK = 1 << 20  # bytes that are looked at together
_LONGEST = 1 << 14  # bytes; no secret is longer, so one that begins before the last so many of a block ends in it
_BEFORE = 16  # bytes in front of a secret that say whether it is one


class ScrubResult(NamedTuple):
    """What became of logs."""

    cleaned: list[Path]  # in which there was something
    failed: dict[Path, OSError]  # that cannot be read or written


def scrub(directory: Path, redactor: Redactor) -> ScrubResult:
    """Scrubs all logs below a directory: one that cannot be scrubbed keeps no other from it."""
    scrubbed = ScrubResult([], {})
    for log in sorted(directory.rglob("*.log")):
        try:
            if log.is_file() and not log.is_symlink() and _scrub(log, redactor):
                scrubbed.cleaned.append(log)
        except OSError as error:
            scrubbed.failed[log] = error
    return scrubbed


def _scrub(log: Path, redactor: Redactor) -> bool:
    """Whether there was anything. No byte moves, so that whoever still writes the log can go on."""
    changed = False
    with log.open("r+b") as file:
        size, start = file.seek(0, os.SEEK_END), 0
        while start < size:
            before = min(start, _BEFORE)
            block = os.pread(file.fileno(), _BLOCK, start - before)
            stop = len(block) - _LONGEST if start - before + len(block) < size else len(block)
            clean = redactor.blanked(block, before, stop)
            if clean != block:
                changed = True
                os.pwrite(file.fileno(), clean, start - before)
            start += stop - before
    return changed
