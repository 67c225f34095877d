"""The input of a report, and functions that sort rules, scenarios and tests by importance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.gate.exit_status import IMPORTED, NO_GATE
from pytest_agentbench.reports.document import Tone
from pytest_agentbench.runs.results import ArmsCompared, MetricCompared, RuleResult
from pytest_agentbench.runs.run_file import Failure, Run
from pytest_agentbench.stats.decisions import FAIL, PASS, Suspect

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame


@dataclass(frozen=True)
class RunView:
    """A run and its directory. The sections of a report get their data from it."""

    run: Run
    directory: Path
    shown: str = ""  # the path of the directory for readers, if it differs

    @property
    def place(self) -> str:
        """The path of the run's directory as reports show it."""
        return self.shown or str(self.directory)

    @cached_property
    def frame(self) -> Frame:
        """All rollouts, calls and output events of the run as columns. The first access reads the journal."""
        from pytest_agentbench.metrics.frame_reader import FrameReader  # imports numpy
        from pytest_agentbench.runs.journal import FILE, read_journal

        reader = FrameReader()
        if (self.directory / FILE).is_file():
            for rollout in read_journal(self.directory, lambda _damage: None):  # run.json already lists the damage
                reader.add(rollout)
        return reader.frame()


#: Verdict of a run, a gate or a rule -> its tone. Other verdicts have the tone "open".
TONES: Mapping[str, Tone] = {PASS: "good", FAIL: "bad", NO_GATE: "", IMPORTED: ""}


def tone(verdict: str) -> Tone:
    """Returns the tone in which a verdict is shown, which decides its colour."""
    return TONES.get(verdict, "open")


def worst_first(rules: Iterable[RuleResult]) -> list[RuleResult]:
    """Sorts rules by verdict: FAIL, INCONCLUSIVE, PASS. The order within a verdict does not change."""
    order = {"FAIL": 0, "INCONCLUSIVE": 1}
    return sorted(rules, key=lambda rule: order.get(rule.verdict, 2))


def score_of(rule: RuleResult) -> str:
    """Returns the score that a rule is about, for example `tsq` for `tsq.mean >= -0.03 vs baseline`."""
    return str(rule.rule).split()[0].removesuffix(".mean")


def claims_of(rule: RuleResult) -> list[Suspect]:
    """Returns the scenarios whose scores got significantly worse, lowest p-value first. On average at most one in ten is a false alarm."""
    return [each for each in rule.suspects if each.claimed]


def ranking_of(rule: RuleResult) -> list[Suspect]:
    """Returns scenarios of a rule whose scores got worse, but which have too few trials for a claim."""
    return [each for each in rule.suspects if not each.claimed]


def suspects(rules: Iterable[RuleResult]) -> list[tuple[RuleResult, Suspect]]:
    """Returns the scenarios that got significantly worse under any rule, each with the rule. The lowest p-value comes first."""
    claims = [(rule, each) for rule in rules for each in claims_of(rule)]
    return sorted(claims, key=lambda pair: (pair[1].p, pair[0].suite, pair[0].rule, pair[1].scenario))


def complete_comparisons(ab: ArmsCompared) -> list[MetricCompared]:
    """Returns the comparisons between arms that did not fail."""
    lost = {each.name for each in ab.arms if each.failure}
    return [each for each in ab.comparisons if not {each.base_arm, each.new_arm} & lost]


def failed_tests(run: Run) -> list[Failure]:
    """Returns the failed tests: first those without a score, then those with the worst score. Equal ones are sorted by id."""
    mains = {suite.main_score: suite.scales[suite.main_score] for suite in run.suites.values()}
    failed = [each for each in run.tests.failures if each.outcome == "failed"]

    def place(test: Failure) -> tuple[float, str]:
        losses = (mains[name].loss(value) for name, value in test.properties.items() if name in mains)
        return -max(losses, default=math.inf), test.id

    return sorted(failed, key=place)


def by_function(tests: Iterable[Failure]) -> Iterator[Sequence[Failure]]:
    """Yields the failed tests of each test function, in the order of their first ones."""
    functions: dict[str, list[Failure]] = {}
    for each in tests:
        functions.setdefault(each.id.partition("[")[0], []).append(each)
    yield from functions.values()


def unmeasured(run: Run) -> dict[str, list[Failure]]:
    """Groups the tests with errors by the status of their rollout: `infra_error`, `cancelled`, or `error` for any other."""
    groups: dict[str, list[Failure]] = {}
    for each in run.tests.failures:
        if each.outcome == "error":
            status = each.properties.get("status")
            groups.setdefault(status if status in ("infra_error", "cancelled") else "error", []).append(each)
    return groups
