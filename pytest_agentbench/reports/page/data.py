"""What the page has of a run: its rows, the numbers of its pictures, and its rollouts as a whole, packed in blocks."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.lib.characters import whole_characters
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.reports.page.distributions import Distributions
from pytest_agentbench.reports.page.rollouts import FIELDS, detail, row
from pytest_agentbench.reports.page.server import server_series
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.journal import FILE, read_journal
from pytest_agentbench.runs.tally import bar_of
from pytest_agentbench.scorers import LOWER_IS_BETTER
from pytest_agentbench.stats.pass_rates import Bar
from pytest_agentbench.tables.places import Calendar

BLOCK = 50  # rollouts that are unpacked together
LEVEL = 6  # of gzip: the next one takes half as long again, for a hundredth of the size


@dataclass(frozen=True)
class RunData:
    """One run on the page. `index` is read when the page opens, a block when somebody opens a rollout of it."""

    index: Json  # name, fields, rows, distributions, server
    blocks: tuple[str, ...]  # gzip in base64: JSON lists of BLOCK rollouts, in the order of the rows


def run_data(run: Run, directory: Path) -> RunData:
    """Reads a run's journal, one rollout in memory at a time, and its samples; a run without them has no rows."""
    bars = {name: bar_of(suite.scorers, suite.thresholds) for name, suite in run.suites.items()}
    packing = Packing(bars)
    if (directory / FILE).is_file():
        for rollout in read_journal(directory, lambda _damage: None):  # the run itself tells of damage
            packing.add(rollout)
    mains = {name: {"score": suite.main_score, "falling": suite.main_score in LOWER_IS_BETTER} for name, suite in run.suites.items()}
    server = server_series(directory, packing.began)
    return RunData({"name": run.id, "mains": mains, **packing.index(), "server": server}, packing.blocks())


class Packing:
    """Rollouts as they come, as rows and blocks."""

    def __init__(self, bars: dict[str, Bar | None]) -> None:
        """`bars`: what a rollout of each suite and variant has to reach to pass."""
        self._bars, self._calendar, self._distributions = bars, Calendar(), Distributions()
        self._rows: list[Json] = []
        self._open: list[Json] = []
        self._blocks: list[str] = []

    def add(self, rollout: Rollout) -> None:
        """Takes a rollout of a scenario; calls by hand and primers are no rows."""
        if rollout.kind != "scenario":
            return
        self._calendar.learn(rollout)
        self._rows.append(row(rollout, self._bars.get(rollout.key.group), self._calendar))
        self._distributions.add(rollout)
        self._open.append(detail(rollout))
        if len(self._open) == BLOCK:
            self._blocks.append(packed(self._open))
            self._open = []

    @property
    def began(self) -> float | None:
        """Seconds since 1970 at which the first rollout started; None where nobody took the time."""
        return min((each["start"] for each in self._rows if each["start"] is not None), default=None)

    def index(self) -> Json:
        """Fields, rows in their order, and distributions. Times of rows are seconds from the first start on."""
        began = self.began
        times = [{name: _later(each[name], began) for name in ("start", "end")} for each in self._rows]
        rows = [[{**each, **at}[name] for name in FIELDS] for each, at in zip(self._rows, times, strict=True)]
        return {"fields": FIELDS, "block": BLOCK, "rows": rows, "distributions": self._distributions.plain()}

    def blocks(self) -> tuple[str, ...]:
        return (*self._blocks, *([packed(self._open)] if self._open else []))


def _later(at: float | None, began: float | None) -> float | None:
    """Seconds from the first start on."""
    return None if at is None or began is None else round(at - began, 3)


def packed(value: Sequence[Json]) -> str:
    """JSON, gzip, base64; equal values give equal texts."""
    return base64.b64encode(gzip.compress(encoded(value).encode(), LEVEL, mtime=0)).decode()


def encoded(value: Any) -> str:
    """JSON that UTF-8 can hold; what a user's code left in a record is written as text."""
    return whole_characters(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
