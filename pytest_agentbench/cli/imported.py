"""A run directory from what a reader found: the same records, numbers and reports as a session's."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import Source
from pytest_agentbench.gate.exit_status import IMPORTED
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.metrics import windows
from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.metrics.stopwatch import WARN
from pytest_agentbench.records import Json, Rollout, RolloutKey
from pytest_agentbench.reports import write_reports
from pytest_agentbench.runs.directory import discard, named_directory
from pytest_agentbench.runs.identity import prompt_hashes
from pytest_agentbench.runs.journal import FILE, record_line, sealed
from pytest_agentbench.runs.tally import SCHEMA, SuiteTally, build_suite, write_run
from pytest_agentbench.suites.disclosure import public_of
from pytest_agentbench.suites.hashes import Contents
from pytest_agentbench.suites.suite import DatasetInfo, Suite


class Importing:
    """One pass over the rollouts, one in memory at a time."""

    def __init__(self, tool: str, source: Source, suite: Suite | None) -> None:
        self.tool, self.source, self.suite = tool, source, suite
        self.scenarios = {each.id: each for each in suite.scenarios} if suite else {}
        self.contents = Contents({suite.name: suite} if suite else {}, "", prompt_hashes)
        self.tallies: dict[str, SuiteTally] = {}  # variant -> what was counted
        self.performance = Performance(source.concurrency or 1)
        self.seen: set[RolloutKey] = set()
        self.unknown: Counter[str] = Counter()  # what rollouts lack -> how many of them do

    def add(self, rollout: Rollout) -> Rollout:
        """Counts a rollout; returns it as a rollout of the suite that it is of."""
        if self.suite:
            if rollout.scenario not in self.scenarios:
                raise ConfigError(f"{self.suite.folder}: no scenario {rollout.scenario!r}, which was run by {self.tool}; is it that suite?")
            key = RolloutKey(self.suite.name, rollout.scenario)
            content = {"scenario": self.contents.of(key)["scenario"], "agent": "", "prompts": "", "scorers": {}, "backend": ""}
            scenario = self.scenarios[rollout.scenario]
            rollout = dataclasses.replace(rollout, suite=key.suite, content=content, expected=scenario.expected, cluster=scenario.cluster)
        else:
            rollout = dataclasses.replace(rollout, suite=self.source.suite)
        if rollout.key in self.seen:
            raise ConfigError(f"{self.tool} has two results of {rollout.key}; an id names one scenario")
        self.seen.add(rollout.key)
        self.tallies.setdefault(rollout.variant, SuiteTally()).add(rollout, self.source.scores[0])
        if rollout.ended_ns:
            self.performance.add(rollout)
        else:  # a span from 1970 on would be in every rate
            self.unknown["start and end"] += 1
        return rollout

    def run(self, name: str, path: Path, command: list[str]) -> Json:
        """run.json, when all rollouts were added."""
        now = _text(time.time())
        span = windows.outer(self.performance.sessions[1].rollouts)
        began, ended = (_text(at / 1e9) for at in span) if span else (now, now)
        suite = self._suite()
        suites = {
            RolloutKey(suite.name, "", variant).group: build_suite(
                dataclasses.replace(suite, agent=self.source.agents.get(variant, {}), variants={}), variant, tally, {}
            )
            for variant, tally in self.tallies.items()
        }
        return {
            "schema": SCHEMA,
            "id": name,
            "started_at": began,
            "finished_at": ended,
            "command": command,
            "verdict": IMPORTED,
            "exit_status": None,
            "imported": {
                "tool": self.tool,
                "path": str(path),
                "at": now,
                "stopwatch": self.source.stopwatch,
                "notes": [*self.source.notes, *self._missing()],
                "facts": self.source.facts,
                "means": [*self._means(suites)],
            },
            "settings": {"backend": self.tool, "concurrency": self.source.concurrency, "changes": {}, "slo": {}},
            "environment": {"python": "unknown", "platform": "unknown", "cpus": None, "packages": {}, "git": None},
            "backend": {"name": self.tool, "kind": "imported", "note": "", "served_model": self.source.model, "failure": ""},
            "rounds": None,
            "earlier": None,
            "interruptions": {"deaths": {}, "attempts": 0},
            "labels": None,
            "plan": {
                "rollouts": max(self.source.planned, len(self.seen)),
                "finished": len(self.seen),
                "not_run": max(0, self.source.planned - len(self.seen)),
            },
            "suites": suites,
            "stopwatch": self._stopwatch(),
            "performance": {**self.performance.summary(), **({} if self._timed else {"split": None})},
            "serving": None,
            "processes": {},
            "limits": [],
            "tests": {},
            "cache": None,
            "ab": None,
            "gate": None,
            "identity": None,
            "sessions": [],
            "repeated": 0,
            "resume": None,
            "damaged": [],
            "losses": [],
        }

    def _suite(self) -> Suite:
        scorers: Mapping[str, Json] = {name: {} for name in self.source.scores}
        if self.suite:
            return dataclasses.replace(self.suite, scorers=scorers)
        size = len({key.scenario for key in self.seen})
        data = DatasetInfo(Path(self.source.dataset).stem or "unknown", "unknown", self.source.dataset, "", "unknown", size)
        return Suite(self.source.suite, Path(), (), data, scorers=scorers)

    def _means(self, suites: Json) -> Iterator[Json]:
        """The means that the tool gives beside ours, and where they differ why."""
        for group, part in suites.items():
            for score, theirs in self.source.means.get(part["variant"], {}).items():
                mean = part["scores"][score]["mean"]
                ours = mean and mean["value"]
                same = ours is not None and math.isclose(theirs, ours, abs_tol=1e-6)
                yield {"suite": group, "score": score, "theirs": theirs, "ours": ours, "why": "" if same else self.source.averages}

    def _stopwatch(self) -> Json:
        """Nobody judged the other tool's stopwatch, so the verdict is no better than a warning."""
        own = self.performance.stopwatch({})
        verdict = WARN if self._timed else None
        return {**own, "verdict": verdict, "reasons": [self.source.stopwatch] * self._timed, "notes": [], "clean_share": None}

    @property
    def _timed(self) -> bool:
        """Whether anybody took the times of calls."""
        return bool(self.performance.latencies["e2e"])

    def _missing(self) -> list[str]:
        notes = [f"{count} of {len(self.seen)} rollouts have no {what}; they are in no timing" for what, count in self.unknown.items()]
        if self.source.concurrency is None:
            notes.append("the concurrency that was asked for is not recorded; steady rates are those of the time with anything in flight")
        if self.suite and (without := len(self.scenarios) - len({key.scenario for key in self.seen})):
            notes.append(f"{without} of {len(self.scenarios)} scenarios of {self.suite.folder} have no result")
        if not self.suite:
            notes.append("no suite was given (--suite), so labels are only what the tool wrote of them, and nothing can be scored again")
        return notes


def _text(seconds: float) -> str:
    """A time since 1970 as run.json has it."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def write(tool: str, source: Source, path: Path, suite: Suite | None, reports: Path) -> tuple[Path, Json]:
    """Writes the run; returns its directory and run.json. Nothing is left behind where the results turn out to be unreadable."""
    name = re.sub(r"[^\w.-]", "-", f"{tool}-{path.resolve().name}")
    target, redact = named_directory(reports, name), Redactor(public=public_of([suite] if suite else []))
    importing = Importing(tool, source, suite)
    try:
        with (target / FILE).open("xb") as lines:
            for rollout in source.rollouts:
                lines.write(sealed(redact(record_line(importing.add(rollout)).decode()).encode()) + b"\n")
        if not importing.seen:
            raise ConfigError(f"{path}: there is no result in it")
        run: Json = json.loads(redact(json.dumps(importing.run(target.name, path, ["agentbench", "import", tool, str(path)]))))
        write_run(run, target)
        write_reports(run, target)
    except BaseException:
        discard(target)
        raise
    return target, run
