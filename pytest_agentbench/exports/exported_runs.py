"""The runs that are to be written for another tool, and names of files for the ids of their scenarios."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pytest_agentbench.metrics.columns import Origin
from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.timeline import TurnCalendar
from pytest_agentbench.records import arm_of
from pytest_agentbench.runs.run_file import Run, read_run
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


LONGEST = 120  # bytes: what is put before it or behind it has to find room, too


class FileNames:
    """Id -> name of a file or folder, without an ending: no two ids of one export have one name, however alike they are."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, id: str) -> str:
        """The id itself, or with `_` for what a name cannot hold; with a hash behind it where it is too long, or another id has it."""
        if id not in self._names:
            name = re.sub(r"[^\w.-]", "_", id)
            if len(name.encode()) > LONGEST or name in self._taken:
                name = f"{name.encode()[:LONGEST].decode(errors='ignore')}-{sha256(id.encode()).hexdigest()[:12]}"
            self._names[id] = name
            self._taken.add(name)
        return self._names[id]
