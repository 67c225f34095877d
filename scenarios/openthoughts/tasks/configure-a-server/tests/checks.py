"""Makes the checks of a task one after the other, up to the first that fails, and writes the reward: 1 where all hold, else 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

REWARD = Path("/logs/verifier/reward.txt")


def verify(*checks: Callable[[], None]) -> None:
    """A check that does not hold raises; what it says is for the reader."""
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
    """The text of a file that an agent should have written: no link, no device, and of no more than 64 KiB."""
    file = Path(path)
    assert not file.is_symlink(), f"{path} is a link"
    assert file.is_file(), f"there is no file {path}"
    assert file.stat().st_size <= 1 << 16, f"{path} is too large"
    return file.read_text()
