"""Task directories for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

#: A task that is done when /root/hello contains `hello`.
FILES: Mapping[str, str] = {
    "task.toml": "",
    "instruction.md": "Write hello into /root/hello.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\n",
    "tests/test.sh": "grep -qx hello /root/hello && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "echo hello > /root/hello\n",
}


def write_task(folder: Path, name: str = "hello", files: Mapping[str, str] = MappingProxyType({}), without: Sequence[str] = ()) -> Path:
    """Writes a task with its usual files.

    `files` (path -> text) replace or add some, and `without` leaves some out. Returns the directory.
    """
    for path, text in {**FILES, **files}.items():
        if path not in without:
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return folder / name
