"""The data of a run in report.html: table rows, the numbers of its pictures, and whole rollouts in compressed blocks."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.telemetry.kv_cache import CachedCalls
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.foreign import USUAL
from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.records import Json, Rollout, RolloutKey, Scale
from pytest_agentbench.reports.page.blocks import NumberedRollouts, block_text, encoded, packed
from pytest_agentbench.reports.page.pictures import BINS, LEAST_BIN, Distributions, server_series
from pytest_agentbench.reports.page.rollouts import FIELDS, detail, row
from pytest_agentbench.runs.journal import FILE, read_journal, with_cut_reasons
from pytest_agentbench.runs.judgement import Judge
from pytest_agentbench.runs.run_file import Run

BLOCK = 50  # rollouts in a compressed block
LARGE = 1_000_000  # characters of JSON at which a block ends even if it has fewer rollouts
MOST = 10_000_000  # characters of all compressed blocks of a page
ENOUGH = 0.95  # share of these at which no further block is tried, after one did not fit
FAILURES = {"agent_error": 0, "infra_error": 1, "cancelled": 2, "limit": 3}  # status -> its place among the rollouts of a page


@dataclass(frozen=True)
class RunData:
    """The data of one run in report.html. The page's script reads `index` first, and a block when the user opens a rollout in it.

    `contents` of the index has the numbers of the rows in each block, and `starts` the number of the first value in each block.
    """

    index: Json  # name, fields, rows, distributions, server, contents, starts
    blocks: tuple[str, ...]  # gzip in base64: JSON of at most BLOCK rollouts and the values that no earlier block has


def run_data(run: Run, directory: Path, on_damage: Callable[[str], None], most: int = MOST) -> RunData:
    """Reads the journal, the messages and the samples of a run. Without a journal there are no rows.

    `most` is the largest number of characters of its blocks.
    """
    from pytest_agentbench.metrics.frame_reader import FrameReader  # imports numpy

    packing, reader = PackedRollouts(Judge.of(run), with_cached=bool(run.kv_cache)), FrameReader()
    if (directory / FILE).is_file():
        for rollout in read_journal(directory, on_damage):
            packing.add(rollout)
            reader.add(rollout)
    packing.distributions.add(reader.frame())
    return packed_data(run, directory, packing, most)


def packed_data(run: Run, directory: Path, packing: PackedRollouts, most: int = MOST) -> RunData:
    """Returns the data of a run from its packed rollouts. Reads its messages and the samples of its server metrics from `directory`."""
    server, mains = server_series(directory, packing.table.began, packing.cached), mains_of(run)
    blocks = packing.blocks(directory, mains, most)
    places = {"contents": blocks.contents, "starts": blocks.starts, "urls": urls_of(run)}
    return RunData(
        {"name": run.id, "recorded": run.backend.is_recorded, "mains": mains, **packing.index(), **places, "server": server},
        tuple(blocks.texts),
    )


def urls_of(run: Run) -> Json:
    """Returns variant -> base URL of its backend, for those whose URL is known after the run."""
    variants = {suite.variant for suite in run.suites.values()}
    return {name: url for name in sorted(variants) if isinstance(url := run.backend.described(name).get("url"), str)}


def keys_of(data: RunData) -> list[RolloutKey]:
    """Returns the keys of the rollouts that have a row in the page's table."""
    first = FIELDS.index("suite")
    return [RolloutKey(*row[first : first + 4]) for row in data.index["rows"]]


def mains_of(run: Run) -> Json:
    """Returns suite or `suite-variant` -> main score, for the page's script."""
    return {name: main(suite.main_score, suite.scales[suite.main_score]) for name, suite in run.suites.items()}


def main(score: str, scale: Scale) -> Json:
    """Returns a main score for the page's script: its name and scale."""
    return {"score": score, "falling": scale.falling, "least": scale.least, "greatest": scale.greatest}


class PageTable:
    """Turns rollouts into rows of the page's table. Times are relative to the first rollout with a known time."""

    def __init__(self, judge: Judge) -> None:
        self._judge, self._calendar = judge, Calendar()
        self.began: float | None = None  # origin of the times of rows, in seconds since 1970; None before the first known time

    def row(self, rollout: Rollout) -> list[Any]:
        """Returns the row of a rollout: a value for each name in FIELDS. Times are seconds after `began`, and may be negative."""
        self._calendar.learn(rollout)
        facts = row(rollout, self._judge.judge(rollout), self._calendar)
        if self.began is None:
            self.began = facts["start"]
        for name in ("start", "end"):
            facts[name] = None if facts[name] is None or self.began is None else round(facts[name] - self.began, 3)
        return [facts[name] for name in FIELDS]


class PackedRollouts:
    """Collects rollouts as table rows and compressed details, and makes the blocks of the page from them.

    The caller must also add the same rollouts to `distributions`, as a frame (a table of rollouts and their calls).
    """

    def __init__(self, judge: Judge, *, with_cached: bool = False) -> None:
        """With `with_cached`, also collects the calls whose prompts may have been in a cache, for runs with KV cache events."""
        self.table, self.distributions = PageTable(judge), Distributions()
        self.cached = CachedCalls() if with_cached else None
        self._rows: list[list[Any]] = []
        self._details: list[bytes] = []  # JSON of the details of each row, compressed

    def add(self, rollout: Rollout) -> None:
        """Adds a rollout of a scenario. Other kinds, such as primers (first calls before a block), are ignored."""
        if rollout.kind != "scenario":
            return
        self._rows.append(self.table.row(rollout))
        if self.cached is not None:
            self.cached.add(rollout)
        self._details.append(zlib.compress(encoded(detail(with_cut_reasons(rollout, USUAL.reason))).encode(), 1))

    def index(self) -> Json:
        """Returns fields, rows and distributions in the format that the page's script reads."""
        limits = {"fields": FIELDS, "bins": BINS, "least": LEAST_BIN}
        return {**limits, "rows": self._rows, "distributions": self.distributions.plain()}

    def blocks(self, directory: Path, mains: Json, most: int) -> PageBlocks:
        """Returns the blocks of the page, of at most `most` characters: failed rollouts, the first trial of each scenario, the others.

        Within each of these three groups, those with the worst main score come first. `directory` is the directory of the run, and
        `mains` what `mains_of` returns.
        """
        blocks = PageBlocks(NumberedRollouts(directory), most)
        order = sorted(range(len(self._rows)), key=lambda number: urgency(dict(zip(FIELDS, self._rows[number], strict=True)), mains))
        for number in order:
            if blocks.is_full:
                break
            blocks.add(number, json_text.loads(zlib.decompress(self._details[number])))
        blocks.close()
        return blocks


def urgency(row: Json, mains: Json) -> tuple[int, int, float]:
    """Returns the place of a rollout among those that a page contains whole, from its row. Lower values come first."""
    main = mains.get(row["suite"] if row["variant"] == "default" else f"{row['suite']}-{row['variant']}", {})
    score = row["scores"].get(main.get("score"))
    failed = row["status"] in FAILURES or row["passed"] is False
    group = 0 if failed else 1 if row["trial"] == 1 else 2
    return group, FAILURES.get(row["status"], len(FAILURES)), float("-inf") if score is None else -score if main["falling"] else score


class PageBlocks:
    """The blocks of a page, filled in the order of the calls of `add` until their size reaches a limit."""

    def __init__(self, numbered: NumberedRollouts, most: int) -> None:
        """`most` is the largest number of characters of all blocks."""
        self.texts: list[str] = []  # gzip in base64
        self.contents: list[list[int]] = []  # the numbers of the rows in each block
        self.is_full = False
        self._numbered, self._most = numbered, most
        self._open: list[Json] = []  # rollouts of the open block, with numbers
        self._waiting: list[tuple[int, Json]] = []  # rows and details of the same rollouts
        self._size = self._room = 0

    @property
    def starts(self) -> list[int]:
        """The number of the first value in each block."""
        return self._numbered.values.starts

    def add(self, number: int, details: Json) -> None:
        """Adds the details of the rollout with this row, which are on the page if their block fits into it."""
        rollout = self._numbered.numbered(details)
        self._waiting.append((number, details))
        self._open.append(rollout)
        self._room += len(encoded(rollout))
        if len(self._open) == BLOCK or self._room + self._numbered.values.open_size > LARGE:
            self.close()

    def close(self) -> None:
        """Ends the open block. If it does not fit, each of its rollouts is tried alone, and those that do not fit are left out."""
        if not self._open:
            return
        text, waiting = packed(block_text(self._open, self._numbered.values.texts())), self._waiting
        self._open, self._waiting, self._room = [], [], 0
        if self._size + len(text) <= self._most:
            self.texts.append(text)
            self.contents.append([number for number, _ in waiting])
            self._size += len(text)
            self._numbered.values.close()
            return
        self._numbered.values.drop()
        if len(waiting) == 1:
            self.is_full = self._size > self._most * ENOUGH
        for number, each in waiting if len(waiting) > 1 else ():
            if not self.is_full:
                self.add(number, each)
                self.close()
