"""Writes a run directory from the results of another tool, with the same records, numbers and reports as a session writes."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import Source
from pytest_agentbench.gate.exit_status import IMPORTED
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.metrics import timeline
from pytest_agentbench.metrics.stopwatch import WARN, CpuShares, Stopwatch, stopwatch_of
from pytest_agentbench.records import Json, Rollout, RolloutKey, scale_in
from pytest_agentbench.reports import write_reports
from pytest_agentbench.runs.builder import RunReader, build_run, plan_suite
from pytest_agentbench.runs.directory import discard, named_directory
from pytest_agentbench.runs.identity import unknown_environment
from pytest_agentbench.runs.journal import FILE, record_line
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.results import PlannedSuite
from pytest_agentbench.runs.run_file import BackendUse, Imported, OwnMean, Plan, Run, SessionFacts, redacted, write_run
from pytest_agentbench.runs.sessions import prompt_hashes
from pytest_agentbench.suites.hashes import ContentHashes
from pytest_agentbench.suites.suite import DatasetInfo, Suite, public_of


class ImportPass:
    """One conversion of another tool's results. Rollouts are passed to `add` one by one, and `run` then returns the run."""

    def __init__(self, tool: str, source: Source, suite: Suite | None) -> None:
        self.tool, self.source, self.suite = tool, source, suite
        self.scenarios = {each.id: each for each in suite.scenarios} if suite else {}
        self.contents = ContentHashes({suite.name: suite} if suite else {}, "", prompt_hashes)
        self.variants: dict[str, str] = {}  # group -> its variant
        self.read = RunReader()
        self.keys: set[RolloutKey] = set()
        self.untimed = 0  # number of rollouts without start and end

    def add(self, rollout: Rollout) -> Rollout:
        """Adds a rollout to the run. Returns the rollout with the name of its suite and, if that is loaded, its scenario's expected values.

        Raises ConfigError if the suite has no such scenario, or if the scenario has two results.
        """
        if self.suite:
            if rollout.scenario not in self.scenarios:
                raise ConfigError(
                    f"{self.suite.folder}: has no scenario {rollout.scenario!r}, which {self.tool} ran; name its suite with --suite"
                )
            key = RolloutKey(self.suite.name, rollout.scenario)
            content = {"scenario": self.contents.of(key)["scenario"], "agent": "", "prompts": "", "scorers": {}, "backend": ""}
            scenario = self.scenarios[rollout.scenario]
            rollout = dataclasses.replace(rollout, suite=key.suite, content=content, expected=scenario.expected, cluster=scenario.cluster)
            rollout = dataclasses.replace(rollout, reference=scenario.reference)
        else:
            rollout = dataclasses.replace(rollout, suite=self.source.suite)
        if rollout.key in self.keys:
            raise ConfigError(f"{self.tool} has two results of {rollout.key}; give each scenario an id of its own")
        self.keys.add(rollout.key)
        self.variants[rollout.key.group] = rollout.variant
        main = self.source.scores[0]
        self.read.add(rollout, main, scale_in(self.source.scales, main))
        self.untimed += not rollout.ended_ns
        return rollout

    def run(self, name: str, path: Path, command: Sequence[str]) -> Run:
        """Returns the run. All rollouts must have been added."""
        now = _text(time.time())
        span = timeline.outer(self.read.frame.scenarios().timed.attempt_spans.get(1, ()))
        began, ended = (_text(at / 1e9) for at in span) if span else (now, now)
        facts = SessionFacts(
            id=name,
            started_at=began,
            finished_at=ended,
            command=tuple(command),
            verdict=IMPORTED,
            imported=Imported(
                tool=self.tool,
                path=str(path),
                at=now,
                stopwatch=self.source.stopwatch,
                notes=(*self.source.notes, *self._missing()),
                facts=self.source.facts,
                means=(),
            ),
            settings=RunOptions(backend=self.tool, concurrency=self.source.concurrency),
            environment=unknown_environment(),
            backend=BackendUse(name=self.tool, note="", kind="imported", served_model=self.source.model, failure=""),
            plan=Plan(max(self.source.planned, len(self.keys)), len(self.keys), max(0, self.source.planned - len(self.keys))),
            stopwatch=self._stopwatch(),
        )
        run = build_run(facts, [*self._planned_suites()], self.read)
        assert run.imported is not None
        return dataclasses.replace(run, imported=dataclasses.replace(run.imported, means=tuple(self._means(run))))

    def _planned_suites(self) -> Iterator[PlannedSuite]:
        suite = self._suite()
        for group, variant in self.variants.items():
            own = dataclasses.replace(suite, agent=self.source.agents.get(variant, {}), variants={})
            yield plan_suite(group, own, variant)

    def _suite(self) -> Suite:
        scorers: Mapping[str, Json] = {name: {} for name in self.source.scores}
        if self.suite:
            return dataclasses.replace(self.suite, scorers=scorers, scales=self.source.scales)
        size = len({key.scenario for key in self.keys})
        data = DatasetInfo(Path(self.source.dataset).stem or "unknown", "unknown", self.source.dataset, "", "unknown", size)
        return Suite(self.source.suite, Path(), (), dataset=data, scorers=scorers, scales=self.source.scales)

    def _means(self, run: Run) -> Iterator[OwnMean]:
        """Yields each mean that the tool reported, next to our mean of the same score, with the reason for a difference."""
        for group, suite in run.suites.items():
            for score, theirs in self.source.means.get(suite.variant, {}).items():
                mean = suite.scores[score].mean
                ours = mean.value if mean else None
                same = ours is not None and math.isclose(theirs, ours, abs_tol=1e-6)
                yield OwnMean(group, score, theirs, ours, "" if same else self.source.averages)

    def _stopwatch(self) -> Stopwatch:
        """Returns the timing quality: a warning, because the other tool did not check its timings, or no verdict without timings."""
        own, timed = stopwatch_of(self.read.frame.scenarios().timed, CpuShares(), os.cpu_count()), self._timed
        reasons = (self.source.stopwatch,) if timed else ()
        return dataclasses.replace(own, verdict=WARN if timed else None, reasons=reasons, notes=(), clean_share=None)

    @property
    def _timed(self) -> bool:
        """Returns whether any LLM call has a measured duration."""
        return self.read.frame.scenarios().timed.value("e2e.n") is not None

    def _missing(self) -> list[str]:
        notes = [f"{self.untimed} of {len(self.keys)} rollouts have no start and end, so no timing includes them"] if self.untimed else []
        if self.source.concurrency is None:
            notes.append("the requested concurrency is not recorded; steady rates are computed over the time with any rollout in flight")
        if self.suite and (without := len(self.scenarios) - len({key.scenario for key in self.keys})):
            notes.append(f"{without} of {len(self.scenarios)} scenarios of {self.suite.folder} have no result")
        if not self.suite:
            notes.append("no suite was given (--suite), so only the labels that the tool wrote are known, and nothing can be scored again")
        return notes


def _text(seconds: float) -> str:
    """Returns a time in seconds since 1970 in the format of run.json."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def write(tool: str, source: Source, path: Path, suite: Suite | None, reports: Path) -> tuple[Path, Run]:
    """Writes the run directory for the results in `source`. Returns the directory and the run. If it fails, the directory is removed."""
    name = re.sub(r"[^\w.-]", "-", f"{tool}-{path.resolve().name}")
    target, redact = named_directory(reports, name), Redactor(public=public_of([suite] if suite else []))
    importing = ImportPass(tool, source, suite)
    try:
        with (target / FILE).open("xb") as lines:
            for rollout in source.rollouts:
                lines.write(sealed(redact(record_line(importing.add(rollout)).decode()).encode()) + b"\n")
        if not importing.keys:
            raise ConfigError(f"{path}: contains no results; pass a directory with results of {tool}")
        run = redacted(importing.run(target.name, path, ("agentbench", "import", tool, str(path))), redact)
        write_run(run, target)
        write_reports(run, target)
    except BaseException:
        discard(target)
        raise
    return target, run
