"""The runs that are to be written for another tool: what a writer is given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from pytest_agentbench.metrics.calendar import TurnCalendar
from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.places import Origin
from pytest_agentbench.records import arm_of
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.tables import Tables, origins, read_frame, read_tables


class ChosenRuns:
    """The runs that are to be written for another tool."""

    def __init__(self, directories: Sequence[Path], *, exact: bool = False) -> None:
        """`exact`: no text of a CSV file is changed so that spreadsheets take it for text. Raises ConfigError as `origins` does."""
        self.exact = exact
        self.origins: Sequence[Origin] = origins(directories)

    @cached_property
    def tables(self) -> Tables:
        return read_tables([each.directory for each in self.origins])

    @staticmethod
    def run_of(origin: Origin) -> Run:
        """What run.json says; raises ConfigError."""
        return read_run(origin.directory)

    @staticmethod
    def in_turns(origin: Origin, run: Run, by: Literal["arm", "group"]) -> dict[str, tuple[Origin, Slice]]:
        """Returns each arm or group of a run with arms: the run by a calendar of its own turns, and its rollouts; nothing of other runs."""
        if not run.ab:
            return {}
        part = read_frame(origin, events=False).scenarios()
        if by == "arm":
            own = {name: part.where(arm=name) for name in dict.fromkeys(map(arm_of, part.rollouts["variant"]))}
        else:
            own = {name: part.where(group=name) for name in dict.fromkeys(part.rollouts["group"])}
        return {name: (origin._replace(calendar=TurnCalendar(origin.calendar, each.turns)), each) for name, each in own.items()}
