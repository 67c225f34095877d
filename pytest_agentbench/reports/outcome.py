"""What CI has to know of a run first: its headline, the verdicts of rules, and the tests that failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from pytest_agentbench.gate.exit_status import CANNOT_TELL, EXITS, IMPORTED, NO_GATE
from pytest_agentbench.gate.rules import floors_of
from pytest_agentbench.reports.gates import claims_of, worst_first
from pytest_agentbench.reports.words import mean_text, percent, score_of
from pytest_agentbench.runs.contents import Failure, Run
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.runs.verdicts import EarlierRuns, RuleResult
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS
from pytest_agentbench.stats.multiple import Suspect


class RuleOutcome(NamedTuple):
    """A rule of the gate, and what became of it."""

    suite: str
    text: str
    verdict: str  # PASS | FAIL | INCONCLUSIVE
    found: str  # the number, its interval, why


Tone = Literal["good", "bad", "open", ""]

#: Verdict of a run, a gate or a rule -> its tone. A verdict that is not here leaves a question open.
TONES: dict[str, Tone] = {PASS: "good", FAIL: "bad", NO_GATE: "", IMPORTED: ""}

NAMED = 3  # suites that a headline names

#: Status of a rollout -> the words for its share in a headline.
ENDINGS = {
    "limit": "ended at a limit",
    "agent_error": "ended as agent_error",
    "infra_error": "ended as infra_error",
    "cancelled": "were cancelled",
}


class Headline(NamedTuple):
    """The answer of a run in one sentence. Every report shows this one."""

    verdict: str  # one of `gate.exit_status.VERDICTS`
    tone: Tone  # of the verdict; empty if nothing was decided
    reason: str  # for an exit status that is not 0, for INCONCLUSIVE and for NO GATE; else empty
    notes: tuple[str, ...]  # the verdict of the gate if it differs, suites without a rule, earlier runs
    means: tuple[str, ...]  # the main score of each suite
    shares: tuple[str, ...]  # of rollouts that did not end well

    @property
    def short(self) -> str:
        """The headline without reason and notes: `FAIL; banking tsq 0.412 [0.371, 0.453]; 3 of 12 rollouts (25 %) ended at a limit`."""
        return "; ".join((self.verdict, *(self.means or ("nothing measured",)), *self.shares))

    def __str__(self) -> str:
        """The whole headline: `FAIL, exit status 1: a test or the gate failed; gate PASS; banking tsq 0.412 [0.371, 0.453]`."""
        return "; ".join((", ".join(filter(None, (self.verdict, self.reason))), *self.notes, *self.means, *self.shares))


def tone(verdict: str) -> Tone:
    """Returns the tone of a verdict, from which each report takes its colour."""
    return TONES.get(verdict, "open")


def headline(run: Run, name: Callable[[str], str] = str) -> Headline:
    """Returns the headline of a run. `name` writes the names of suites and scores in the format of the report."""
    return Headline(run.verdict, tone(run.verdict), _reason(run), tuple(_notes(run, name)), tuple(_means(run, name)), tuple(_shares(run)))


def _reason(run: Run) -> str:
    if status := run.exit_status:
        return f"exit status {status}: {EXITS[status].text if status in EXITS else 'see pytest'}"
    if run.verdict == INCONCLUSIVE:
        return EXITS[CANNOT_TELL].text
    if run.verdict != NO_GATE:
        return ""
    if run.gate:
        return f"the rules are only shown, and say {run.gate.verdict}"
    return "no test applies a threshold" if any(map(_has_floor, run.suites.values())) else "no rule or threshold was applied"


def _notes(run: Run, name: Callable[[str], str]) -> Iterator[str]:
    gate = run.gate
    if gate and run.verdict not in (gate.verdict, NO_GATE):
        yield f"gate {gate.verdict}"
    if run.verdict in (PASS, INCONCLUSIVE):
        asked = {rule.suite for rule in gate.rules} if gate else set()
        silent = [name(group) for group, suite in run.suites.items() if group not in asked and not _has_floor(suite)]
        yield from (f"no rule for {_listed(silent)}",) if silent else ()
    if tries := tries_text(run.earlier):
        yield tries


def _has_floor(suite: SuiteResult) -> bool:
    return bool(floors_of(suite.thresholds))


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _means(run: Run, name: Callable[[str], str]) -> Iterator[str]:
    """`banking tsq 0.612 [0.571, 0.653]`: the main score of the first suites. The arms of an A/B session are compared elsewhere."""
    suites = [] if run.ab else [*run.suites.items()]
    yield from (f"{name(group)} {name(suite.main_score)} {mean_text(suite.main_mean)}" for group, suite in suites[:NAMED])
    if more := suites[NAMED:]:
        yield f"and {len(more)} more suite{'s' * (len(more) > 1)}"


def _shares(run: Run) -> Iterator[str]:
    """`3 of 12 rollouts (25 %) ended at a limit`: one for each status but `ok`, and one for rollouts that were not run."""
    total = sum(sum(suite.rollouts.values()) for suite in run.suites.values())
    for status, words in ENDINGS.items():
        if count := sum(suite.rollouts.get(status, 0) for suite in run.suites.values()):
            yield f"{_share(count, total, 'rollout')} {words}"
    if run.plan.not_run:
        yield f"{_share(run.plan.not_run, run.plan.rollouts, 'planned rollout')} {'were' if run.plan.rollouts > 1 else 'was'} not run"


def _share(count: int, total: int, noun: str) -> str:
    return f"{count:,} of {total:,} {noun}{'s' * (total > 1)} ({percent(count / total).replace('.0 %', ' %')})"


def tries_text(earlier: EarlierRuns | None) -> str:
    """Returns `the 3rd run of this setup, 2 before it were not PASS`, or an empty text if every earlier run was PASS."""
    if not earlier or not earlier.not_passed:
        return ""
    number, failed = earlier.runs + 1, len(earlier.not_passed)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"the {number}{ending} run of this setup, {failed} before it {'were' if failed > 1 else 'was'} not PASS"


def rules(run: Run) -> list[RuleOutcome]:
    """The worst first: what failed, what is open, what holds."""
    return [*map(_told, worst_first(run.gate.rules if run.gate else ()))]


def _told(rule: RuleResult) -> RuleOutcome:
    interval = "" if rule.low is None or rule.high is None else f" [{rule.low:.4g}, {rule.high:.4g}]"
    found = "; ".join(filter(None, (f"{_value(rule.estimate)}{interval}", rule.reason)))
    return RuleOutcome(rule.suite, rule.rule, rule.verdict, found)


def _value(value: float | None) -> str:
    return "nothing measured" if value is None else f"{value:.4g}"


def suspects(run: Run) -> list[tuple[str, Suspect]]:
    """(suite and score, scenario that got worse since the baseline), the surest first; equal ones by name. One in ten did by chance."""
    rules = run.gate.rules if run.gate else ()
    found = [(f"{rule.suite} {score_of(rule)}", each) for rule in rules for each in claims_of(rule)]
    return sorted(found, key=lambda each: (each[1].p, each[0], each[1].scenario))


def failed_tests(run: Run) -> list[Failure]:
    """Tests that failed: those without a score first, then the worst score first; equal ones by id."""
    mains = {suite.main_score: suite.scales[suite.main_score] for suite in run.suites.values()}
    failed = [each for each in run.tests.failures if each.outcome == "failed"]

    def place(test: Failure) -> tuple[float, str]:
        losses = (mains[name].loss(value) for name, value in test.properties.items() if name in mains)
        return -max(losses, default=math.inf), test.id

    return sorted(failed, key=place)


def unmeasured(run: Run) -> dict[str, list[Failure]]:
    """Tests that are errors, by the status of their rollout: `infra_error`, `cancelled`, or `error` where there is none."""
    groups: dict[str, list[Failure]] = {}
    for each in run.tests.failures:
        if each.outcome == "error":
            status = each.properties.get("status")
            groups.setdefault(status if status in ("infra_error", "cancelled") else "error", []).append(each)
    return groups
