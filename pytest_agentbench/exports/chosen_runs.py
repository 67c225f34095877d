"""The runs that are to be written for another tool: what a writer is given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.tables import Tables, origins, read_tables
from pytest_agentbench.tables.places import Origin


class ChosenRuns:
    """The runs that are to be written for another tool."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """Raises ConfigError as `origins` does."""
        self.origins: Sequence[Origin] = origins(directories)

    @cached_property
    def tables(self) -> Tables:
        return read_tables([each.directory for each in self.origins])

    @staticmethod
    def run_of(origin: Origin) -> Run:
        """What run.json says; raises ConfigError."""
        return read_run(origin.directory)
