"""What the page has of a run: its rows, the numbers of its pictures, and its rollouts as a whole, packed in blocks."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pytest_agentbench.lib.foreign import USUAL
from pytest_agentbench.lib.json_text import whole_characters
from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.records import Json, Rollout, RolloutKey, Scale
from pytest_agentbench.reports.page.pictures import BINS, Distributions, server_series
from pytest_agentbench.reports.page.rollouts import FIELDS, detail, row
from pytest_agentbench.runs.builder import pass_threshold_of
from pytest_agentbench.runs.journal import FILE, read_journal, with_cut_reasons
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.pass_rates import PassThreshold

BLOCK = 50  # rollouts that are unpacked together
LEVEL = 6  # of gzip: the next one takes half as long again, for a hundredth of the size


@dataclass(frozen=True)
class RunData:
    """One run on the page. `index` is read when the page opens, a block when somebody opens a rollout of it."""

    index: Json  # name, fields, rows, distributions, server
    blocks: tuple[str, ...]  # gzip in base64: JSON lists of BLOCK rollouts, in the order of the rows


def run_data(run: Run, directory: Path, on_damage: Callable[[str], None]) -> RunData:
    """Reads a run's journal, one rollout in memory at a time, and its samples; a run without them has no rows."""
    from pytest_agentbench.metrics.frame_reader import FrameReader  # numpy with it

    packing, reader = PackedRollouts(pass_thresholds_of(run)), FrameReader()
    if (directory / FILE).is_file():
        for rollout in read_journal(directory, on_damage):
            packing.add(rollout)
            reader.add(rollout)
    packing.distributions.add(reader.frame())
    return packed_data(run, directory, packing)


def packed_data(run: Run, directory: Path, packing: PackedRollouts) -> RunData:
    """Returns the data of a run whose rollouts have been read."""
    server = server_series(directory, packing.table.began)
    return RunData({"name": run.id, "mains": mains_of(run), **packing.index(), "server": server}, packing.blocks())


def keys_of(data: RunData) -> list[RolloutKey]:
    """Returns the keys of the rollouts that have a row."""
    first = FIELDS.index("suite")
    return [RolloutKey(*row[first : first + 4]) for row in data.index["rows"]]


def pass_thresholds_of(run: Run) -> dict[str, PassThreshold | None]:
    """Suite, or `suite-variant` -> what a rollout has to reach to pass; None where nobody said."""
    return {name: pass_threshold_of(suite.scorers, suite.thresholds, suite.scales) for name, suite in run.suites.items()}


def mains_of(run: Run) -> Json:
    """Suite, or `suite-variant` -> its main score."""
    return {name: main(suite.main_score, suite.scales[suite.main_score]) for name, suite in run.suites.items()}


def main(score: str, scale: Scale) -> Json:
    """A main score as the page knows it."""
    return {"score": score, "falling": scale.falling}


class PageTable:
    """Rows of rollouts as they come."""

    def __init__(self, pass_thresholds: Mapping[str, PassThreshold | None]) -> None:
        """`pass_thresholds`: what a rollout of each suite and variant has to reach to pass."""
        self._pass_thresholds, self._calendar = pass_thresholds, Calendar()
        self.began: float | None = None  # seconds since 1970 from which the times of rows count; None while nobody took the time

    def row(self, rollout: Rollout) -> list[Any]:
        """Its FIELDS; times are seconds after `began`, and below zero where a rollout started earlier and ended later."""
        self._calendar.learn(rollout)
        facts = row(rollout, self._pass_thresholds.get(rollout.key.group), self._calendar)
        if self.began is None:
            self.began = facts["start"]
        for name in ("start", "end"):
            facts[name] = None if facts[name] is None or self.began is None else round(facts[name] - self.began, 3)
        return [facts[name] for name in FIELDS]


class PackedRollouts:
    """Rollouts as they come, as rows and blocks; `distributions` is empty until the caller adds a frame of them."""

    def __init__(self, pass_thresholds: Mapping[str, PassThreshold | None]) -> None:
        self.table, self.distributions = PageTable(pass_thresholds), Distributions()
        self._rows: list[list[Any]] = []
        self._open: list[Json] = []
        self._blocks: list[str] = []

    def add(self, rollout: Rollout) -> None:
        """Takes a rollout of a scenario; calls by hand and primers are no rows."""
        if rollout.kind != "scenario":
            return
        self._rows.append(self.table.row(rollout))
        self._open.append(detail(with_cut_reasons(rollout, USUAL.reason)))
        if len(self._open) == BLOCK:
            self._blocks.append(packed(self._open))
            self._open = []

    def index(self) -> Json:
        """Fields, rows in their order, and distributions."""
        return {"fields": FIELDS, "block": BLOCK, "bins": BINS, "rows": self._rows, "distributions": self.distributions.plain()}

    def blocks(self) -> tuple[str, ...]:
        return (*self._blocks, *([packed(self._open)] if self._open else []))


def packed(value: Sequence[Json]) -> str:
    """JSON, gzip, base64; equal values give equal texts."""
    return base64.b64encode(gzip.compress(encoded(value).encode(), LEVEL, mtime=0)).decode()


def encoded(value: Any) -> str:
    """JSON that UTF-8 can hold; what a user's code left in a record is written as text."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # objects in an agent's settings, lone surrogates, integers beyond 64 bits
        return whole_characters(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
