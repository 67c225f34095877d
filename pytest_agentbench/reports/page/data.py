"""The data of a run in report.html: table rows, the numbers of its pictures, and whole rollouts in compressed blocks."""

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
from pytest_agentbench.reports.page.pictures import BINS, LEAST_BIN, Distributions, server_series
from pytest_agentbench.reports.page.rollouts import FIELDS, detail, row
from pytest_agentbench.runs.builder import pass_threshold_of
from pytest_agentbench.runs.journal import FILE, read_journal, with_cut_reasons
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.pass_rates import PassThreshold

BLOCK = 50  # rollouts in a compressed block
LEVEL = 6  # level of gzip; the next one takes 50 % longer and saves 1 % of the size


@dataclass(frozen=True)
class RunData:
    """The data of one run in report.html. The page's script reads `index` first, and a block when the user opens a rollout in it."""

    index: Json  # name, fields, rows, distributions, server
    blocks: tuple[str, ...]  # gzip in base64: JSON lists of BLOCK rollouts, in the order of the rows


def run_data(run: Run, directory: Path, on_damage: Callable[[str], None]) -> RunData:
    """Reads the journal and the samples of a run, with one rollout in memory at a time. Without a journal there are no rows."""
    from pytest_agentbench.metrics.frame_reader import FrameReader  # imports numpy

    packing, reader = PackedRollouts(pass_thresholds_of(run)), FrameReader()
    if (directory / FILE).is_file():
        for rollout in read_journal(directory, on_damage):
            packing.add(rollout)
            reader.add(rollout)
    packing.distributions.add(reader.frame())
    return packed_data(run, directory, packing)


def packed_data(run: Run, directory: Path, packing: PackedRollouts) -> RunData:
    """Returns the data of a run from its packed rollouts. Reads the samples of its server metrics from `directory`."""
    server = server_series(directory, packing.table.began)
    facts = {"name": run.id, "recorded": run.backend.is_recorded, "mains": mains_of(run)}
    return RunData({**facts, **packing.index(), "server": server}, packing.blocks())


def keys_of(data: RunData) -> list[RolloutKey]:
    """Returns the keys of the rollouts that have a row in the page's table."""
    first = FIELDS.index("suite")
    return [RolloutKey(*row[first : first + 4]) for row in data.index["rows"]]


def pass_thresholds_of(run: Run) -> dict[str, PassThreshold | None]:
    """Returns for each suite or `suite-variant` the threshold that a rollout must reach to pass, or None without a threshold."""
    return {name: pass_threshold_of(suite.scorers, suite.thresholds, suite.scales) for name, suite in run.suites.items()}


def mains_of(run: Run) -> Json:
    """Returns suite or `suite-variant` -> main score, for the page's script."""
    return {name: main(suite.main_score, suite.scales[suite.main_score], suite.thresholds) for name, suite in run.suites.items()}


def main(score: str, scale: Scale, thresholds: Mapping[str, float] | None = None) -> Json:
    """Returns a main score for the page's script: its name and scale, and whether a score can miss its threshold (None if unknown)."""
    decides = None if thresholds is None else score in thresholds and thresholds[score] != scale.worst
    return {"score": score, "falling": scale.falling, "least": scale.least, "greatest": scale.greatest, "decides": decides}


class PageTable:
    """Turns rollouts into rows of the page's table. Times are relative to the first rollout with a known time."""

    def __init__(self, pass_thresholds: Mapping[str, PassThreshold | None]) -> None:
        """`pass_thresholds` has the threshold to pass of each suite or `suite-variant`."""
        self._pass_thresholds, self._calendar = pass_thresholds, Calendar()
        self.began: float | None = None  # origin of the times of rows, in seconds since 1970; None before the first known time

    def row(self, rollout: Rollout) -> list[Any]:
        """Returns the row of a rollout: a value for each name in FIELDS. Times are seconds after `began`, and may be negative."""
        self._calendar.learn(rollout)
        facts = row(rollout, self._pass_thresholds.get(rollout.key.group), self._calendar)
        if self.began is None:
            self.began = facts["start"]
        for name in ("start", "end"):
            facts[name] = None if facts[name] is None or self.began is None else round(facts[name] - self.began, 3)
        return [facts[name] for name in FIELDS]


class PackedRollouts:
    """Collects rollouts as table rows and compressed blocks.

    The caller must also add the same rollouts to `distributions`, as a frame (a table of rollouts and their calls).
    """

    def __init__(self, pass_thresholds: Mapping[str, PassThreshold | None]) -> None:
        self.table, self.distributions = PageTable(pass_thresholds), Distributions()
        self._rows: list[list[Any]] = []
        self._open: list[Json] = []
        self._blocks: list[str] = []

    def add(self, rollout: Rollout) -> None:
        """Adds a rollout of a scenario. Other kinds, such as primers (calls that fill the prefix cache), are ignored."""
        if rollout.kind != "scenario":
            return
        self._rows.append(self.table.row(rollout))
        self._open.append(detail(with_cut_reasons(rollout, USUAL.reason)))
        if len(self._open) == BLOCK:
            self._blocks.append(packed(self._open))
            self._open = []

    def index(self) -> Json:
        """Returns fields, rows and distributions in the format that the page's script reads."""
        limits = {"fields": FIELDS, "block": BLOCK, "bins": BINS, "least": LEAST_BIN}
        return {**limits, "rows": self._rows, "distributions": self.distributions.plain()}

    def blocks(self) -> tuple[str, ...]:
        return (*self._blocks, *([packed(self._open)] if self._open else []))


def packed(value: Sequence[Json]) -> str:
    """Encodes values as JSON, compresses it, and returns it as base64. Equal values give equal texts."""
    return base64.b64encode(gzip.compress(encoded(value).encode(), LEVEL, mtime=0)).decode()


def encoded(value: Any) -> str:
    """Encodes a value as JSON in valid UTF-8. Objects of user code are converted to strings."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # objects in settings of an agent, lone surrogates, or integers longer than 64 bits
        return whole_characters(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
