"""Runs the checks of a task in order, up to the first that fails, and writes the reward: 1 if all succeed, otherwise 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

REWARD = Path("/logs/verifier/reward.txt")


def verify(*checks: Callable[[], None]) -> None:
    """Runs the checks and writes the reward. A check that fails raises an exception, whose message is printed."""
    for check in checks:
        try:
            check()
        except Exception as error:
            print(f"FAILED {check.__name__} - {type(error).__name__}: {error}")
            REWARD.write_text("0\n")
            return
        print(f"passed {check.__name__}")
    REWARD.write_text("1\n")


def small_text(path: str) -> str:
    """Returns the text of a file that the agent should have written. Raises AssertionError if it is not a regular file of at most 64 KiB."""
    file = Path(path)
    assert not file.is_symlink(), f"{path} is a link"
    assert file.is_file(), f"there is no file {path}"
    assert file.stat().st_size <= 1 << 16, f"{path} is too large"
    return file.read_text()
