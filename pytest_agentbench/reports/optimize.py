"""The report of a study of `agentbench optimize`, and its files.

The report has the result of the confirmation first, then what the search looked at, which is only a ranking.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.optimize.confirmation import CONFIRMED, Confirmation
from pytest_agentbench.optimize.plan import StudyPlan
from pytest_agentbench.optimize.ranking import RankingTerms
from pytest_agentbench.optimize.search import RankedTrial
from pytest_agentbench.records import Json
from pytest_agentbench.reports import optimize_phrases
from pytest_agentbench.reports.document import Code, Document, Fact, Figure, Level, Table, TableCell, Tone, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.markdown import lines
from pytest_agentbench.stats.decisions import Decision

PAGE, DATA, PICTURE = "optimize.md", "optimize.json", "pareto.png"
SCHEMA = "agentbench-optimize/1"


@dataclass(frozen=True)
class StudyReport:
    """The results of a study."""

    suite: str
    terms: RankingTerms
    plan: StudyPlan
    trials: tuple[RankedTrial, ...]  # all that ended, in their order
    front: tuple[RankedTrial, ...]  # those that no other is better than in all objectives
    best: RankedTrial | None  # the one that was confirmed; None if none ranked before the default settings
    confirmation: Confirmation | None
    importances: Mapping[str, float]  # setting -> share in the differences of the first objective
    obstacles: tuple[str, ...]  # why the study could not confirm anything
    path: str  # folder of the suite

    @property
    def tone(self) -> Tone:
        return "good" if self.confirmation and self.confirmation.verdict == CONFIRMED else "open"


def document(report: StudyReport, picture: str = "") -> Document:
    """Returns the report of a study. `picture` is the path of the figure of its Pareto set, or empty."""
    parts = [of("", _conclusions(report)), of("Ranking of the search (no claim)", [_ranking(report)])]
    if len(report.terms.objectives) > 1:
        figure = [Figure("two objectives of the trials", picture, level=Level.VERBOSE)] if picture else []
        parts.append(of("Pareto set", [_front(report), *figure]))
    if report.importances:
        rows = tuple((name, share) for name, share in report.importances.items())
        parts.append(of("Importance of settings", [Table(heads("setting", ("share", 2)), rows)]))
    return Document.of(f"Study of {report.suite}", parts)


def _conclusions(report: StudyReport) -> Iterator[Fact]:
    if report.confirmation and report.best:
        yield Fact("verdict", say(optimize_phrases.verdict, report.confirmation), report.tone)
        yield Fact("settings", optimize_phrases.settings_text(report.best.settings))
    else:
        yield Fact("verdict", optimize_phrases.NOTHING, "open")
    yield Fact("advice", optimize_phrases.advice(report.confirmation), report.tone)
    for reason in report.obstacles:
        yield Fact("obstacle", reason, "open")
    yield Fact("looked at", say(optimize_phrases.looked_at, report.trials))
    if report.confirmation and report.best and report.tone == "good":
        for line in optimize_phrases.as_yaml(report.best.settings).splitlines():
            yield Fact("yaml", Code(line, "command"))
        yield Fact("command", Code(optimize_phrases.command(report.path, report.best.settings), "command"))


def _ranking(report: StudyReport) -> Table:
    """Returns the table of all trials: complete ones by their value, then the others."""
    ordered = sorted(report.trials, key=lambda each: each.values or (math.inf,))
    objectives = [name for name in report.terms.objectives if name in _ratios(report)]
    columns = heads(("trial", 0), "settings", *((name, 3) for name in objectives), ("quality", 3), "state")
    return Table(columns, tuple(_row(each, objectives) for each in ordered))


def _ratios(report: StudyReport) -> set[str]:
    return {name for each in report.trials if each.evidence for name in each.evidence.ratios}


def _row(trial: RankedTrial, objectives: list[str]) -> tuple[TableCell, ...]:
    known = trial.evidence
    ratios = [math.exp(known.ratios[name]) if known else None for name in objectives]
    quality = round(-known.loss, 6) + 0.0 if known else None
    return trial.number, optimize_phrases.settings_text(trial.settings), *ratios, quality, trial.why or trial.state


def _front(report: StudyReport) -> Table:
    columns = heads(("trial", 0), "settings", *((name, 3) for name in report.terms.objectives))
    return Table(columns, tuple((each.number, optimize_phrases.settings_text(each.settings), *each.values) for each in report.front))


def write(report: StudyReport, directory: Path) -> list[Path]:
    """Writes the report for people and for scripts, and with several objectives a picture. Returns the paths."""
    picture = PICTURE if len(report.terms.objectives) > 1 and find_spec("matplotlib") else ""
    if picture:
        from pytest_agentbench.plots.comparisons import draw_pareto

        draw_pareto(report.trials, report.front, report.terms.objectives, directory / picture)
    page = "\n".join(lines(document(report, picture), Level.VERBOSE)) + "\n"
    files = [write_whole(directory / PAGE, page), write_whole(directory / DATA, json.dumps(as_json(report), indent=2) + "\n")]
    return sorted([*files, *([directory / picture] if picture else [])])


def as_json(report: StudyReport) -> Json:
    """Returns the content of optimize.json."""
    confirmed = report.confirmation
    return {
        "schema": SCHEMA,
        "suite": report.suite,
        "objectives": [*report.terms.objectives],
        "verdict": confirmed.verdict if confirmed else None,
        "settings": report.best.settings if report.best else None,
        "speed": _numbers(confirmed.speed) if confirmed else None,
        "quality": _numbers(confirmed.quality.decision) if confirmed else None,
        "trials": [
            {"number": each.number, "settings": each.settings, "state": each.state, "values": [*each.values], "why": each.why}
            for each in report.trials
        ],
        "pareto": [each.number for each in report.front],
        "importances": dict(report.importances),
        "held_out": [*report.plan.held_out],
        "confirmation_trials": report.plan.confirmation_trials,
        "obstacles": [*report.obstacles],
    }


def _numbers(decision: Decision) -> Json:
    return {name: getattr(decision, name) for name in ("verdict", "estimate", "low", "high", "reason")}
