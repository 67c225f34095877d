"""What a report is made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.runs.contents import Run

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame


@dataclass(frozen=True)
class RunView:
    """A run, and the directory in which its records are."""

    run: Run
    directory: Path
    shown: str = ""  # the directory as the reader can open it; empty: as it is

    @property
    def place(self) -> str:
        """The directory as reports name it."""
        return self.shown or str(self.directory)

    @cached_property
    def frame(self) -> Frame:
        """All rollouts, calls and events of the run as columns. A view reads the journal when a section first asks for them."""
        from pytest_agentbench.metrics.frame_reader import FrameReader  # numpy with it
        from pytest_agentbench.runs.journal import FILE, read_journal

        reader = FrameReader()
        if (self.directory / FILE).is_file():
            for rollout in read_journal(self.directory, lambda _damage: None):  # the run tells of damage
                reader.add(rollout)
        return reader.frame()
