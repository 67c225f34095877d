"""The runs that are to be written for another tool: what a writer is given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from pytest_agentbench.metrics.turns import Turns
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.runs.calendar import TurnCalendar
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.tables import Tables, origins, places, read_tables
from pytest_agentbench.tables.places import Origin


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
    def in_turns(origin: Origin, run: Run, of: Callable[[RolloutKey], str]) -> dict[str, tuple[Origin, Turns]]:
        """What `of` calls the rollouts of a run with arms -> the run by a calendar of their own turns, and these; nothing of others."""
        turns: defaultdict[str, Turns] = defaultdict(Turns)
        for place in places(origin) if run.ab else ():
            if place.rollout.kind == "scenario":
                turns[of(place.rollout.key)].add(place.rollout)
        return {name: (origin._replace(calendar=TurnCalendar(origin.calendar, own)), own) for name, own in turns.items()}
