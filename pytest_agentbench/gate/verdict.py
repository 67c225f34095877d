"""Rules, a run and its baseline become verdicts: one a rule, with everything needed to check it, and one for the session.

Nothing that could not be measured passes: doubts about the whole run turn PASS into INCONCLUSIVE. A rule that fails, fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.gate.evidence import Evidence, Facts, Trial
from pytest_agentbench.gate.rules import Rule
from pytest_agentbench.metrics.stopwatch import SATURATED, title
from pytest_agentbench.stats import multiple
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, SUITE, Decision, Missing, judge
from pytest_agentbench.stats.latency import Timing, compare_latency, latency_limit
from pytest_agentbench.stats.multiple import Suspect
from pytest_agentbench.stats.paired import Sample, against_limit, breaking, compare, pair
from pytest_agentbench.stats.pass_rates import Bar, against_share
from pytest_agentbench.stats.sequential import FIRST_LOOK, Looks

INFRA_ERRORS = 0.02  # share of rollouts that may be infra_error, where no rule says otherwise
ENOUGH = 0.8  # share of the scenarios that a claim about a suite has to rest on
FAILED_CALLS = 0.02  # share of LLM calls that may have failed where latencies are judged: failed ones have none
CACHE_APART = 0.1  # difference of prefix cache hit ratios from which latencies are not the engine's alone
SHORTEST_MS = 0.001  # a latency below a microsecond counts as one: its logarithm has to exist
CONFIDENCE = 0.95

TIMED = ("latency", "rate", "goodput")  # kinds that a saturated client spoils

#: Kinds that are about scenarios, those in quarantine left out; the others are about a run.
OF_SCENARIOS = ("score", "passes", "latency", "goodput")

LOST = ("infra_error", "cancelled")  # statuses of rollouts that would have had a score

#: Hash of a rollout -> what is said where it is not the baseline's.
DIFFERENT = {
    "agent": "the agent is not the baseline's",
    "prompts": "the prompts are not the baseline's",
    "backend": "the backend is not the baseline's",
}


@dataclass(frozen=True)
class Asked:
    """A rule for one suite under one variant."""

    group: str
    rule: Rule
    falling: bool = False  # a score of which less is better
    any_part: bool = False  # judged even when only a part of the suite ran: it is from the command line
    deterministic: bool = False  # the suite says that its trials never differ
    bar: Bar | None = None  # what a rollout has to reach to pass; None where the suite does not say

    @property
    def score(self) -> str:
        """The score that the rule looks at; empty where it looks at none."""
        if self.rule.kind == "passes":
            return self.bar.score if self.bar else ""
        return self.rule.metric if self.rule.kind == "score" else ""

    @property
    def is_looked_at(self) -> bool:
        """Whether it may decide before the last round of trials, as those of values with limits; others are judged once, in the end."""
        return self.rule.kind == "passes" or (self.rule.kind == "score" and not self.falling)


@dataclass(frozen=True)
class Judged:
    """What a rule found."""

    asked: Asked
    decision: Decision
    notes: tuple[str, ...] = ()  # what a reader should know beside the decision's own reason
    suspects: tuple[Suspect, ...] = ()  # scenarios that may have got worse

    def is_open(self, rounds: int) -> bool:
        """Whether more trials than there are after so many rounds may decide it."""
        found, rule = self.decision, self.asked.rule
        if found.verdict != INCONCLUSIVE:
            return False
        if found.low is None:
            return rule.kind == "passes" and rule.pass_rate.k > rounds
        return judge(found.low, found.high, found.threshold) == INCONCLUSIVE


def judge_rules(asked: Sequence[Asked], run: Evidence, baselines: Mapping[str, Evidence]) -> list[Judged]:
    """A verdict for each rule; `baselines` has the baseline of each suite or variant that has one."""
    doubts = {group: tuple(_doubts(group, asked, run)) for group in {each.group for each in asked}}
    confidence = 1 - (1 - CONFIDENCE) / max(1, sum(map(_without_margin, asked)))
    looked = run.up_to(run.facts.rounds) if run.facts.rounds >= FIRST_LOOK else run
    return [
        _judged(
            each,
            looked if each.is_looked_at else run,
            base := baselines.get(each.group),
            doubts[each.group],
            _confidence(each, run.facts, base, confidence if _without_margin(each) else CONFIDENCE),
        )
        for each in asked
    ]


def _confidence(asked: Asked, facts: Facts, base: Evidence | None, alone: float) -> float:
    """Of a rule's interval, which would have that of `alone` if nobody had looked before."""
    if not facts.most_rounds or not asked.is_looked_at:
        return alone
    old = base.groups.get(asked.group, ()) if base and asked.rule.versus else ()
    base_trials = len(old) / len({trial.scenario for trial in old}) if old else 0.0
    return Looks(facts.most_rounds, base_trials).confidence(facts.rounds, alone)


def _without_margin(asked: Asked) -> bool:
    """Whether a rule may fail by chance as often as its level says; several of them share it (Bonferroni)."""
    return asked.rule.kind == "score" and asked.rule.versus and asked.rule.margin == 0


def session_verdict(judged: Iterable[Judged]) -> str:
    """FAIL if a rule fails, PASS if all pass, else INCONCLUSIVE (an intersection-union test)."""
    return multiple.overall(each.decision.verdict for each in judged)


def cannot_measure(group: str, asked: Sequence[Asked], run: Evidence) -> bool:
    """Whether the run has lost so many rollouts of a group, or so many to errors of the infrastructure, that this is its verdict."""
    return any(True for _ in _unmeasured(group, asked, run))


def _doubts(group: str, asked: Sequence[Asked], run: Evidence) -> Iterator[str]:
    """Why nothing about this group may pass."""
    yield from _unmeasured(group, asked, run)
    if not any(trial.status in ("ok", "limit") for trial in run.groups.get(group, ())):
        yield "no rollout was evaluable"


def _unmeasured(group: str, asked: Sequence[Asked], run: Evidence) -> Iterator[str]:
    statuses = Counter(trial.status for trial in run.groups.get(group, ()))
    if lost := run.facts.lost + statuses["cancelled"]:
        yield f"{lost} of {run.facts.planned} planned rollouts were not run"
    total = statuses.total()
    allowed = next((each.rule.limit for each in asked if each.group == group and each.rule.metric == "infra_error"), INFRA_ERRORS)
    if total and statuses["infra_error"] / total > allowed:
        yield f"{statuses['infra_error']} of {total} rollouts ended as infra_error, more than {allowed * 100:g} %"


def _judged(asked: Asked, run: Evidence, base: Evidence | None, doubts: Sequence[str], confidence: float) -> Judged:
    group, rule = asked.group, asked.rule
    left_out = run.facts.quarantined.get(group, ()) if rule.kind in OF_SCENARIOS else ()
    if rule.versus and (base is None or group not in base.groups):
        where = "there is no baseline" if base is None else f"the baseline {base.facts.run} has no {group}"
        return Judged(asked, _undecided(rule, f"{where}; --agentbench-baseline names one"))
    if left_out:  # on both sides: what the run says of its own scenarios holds for whatever it is compared with
        run, base = run.without(group, left_out), base.without(group, left_out) if base else None
    if why := _incomparable(asked, run, base):
        return Judged(asked, _undecided(rule, why))
    decision = _decide(asked, run, base if rule.versus else None, confidence)
    doubts = (*doubts, *_rests_on_too_little(asked, decision, run))
    if doubts and decision.verdict == PASS:
        decision = replace(decision, verdict=INCONCLUSIVE)
    if doubts:
        decision = replace(decision, reason="; ".join(filter(None, (*doubts, decision.reason))))
    notes = [f"left out, in quarantine: {', '.join(left_out)}"] if left_out else []
    notes += _notes(asked, run, base) if base and rule.versus else ()
    notes += _broken_word(asked, run, base) if base and asked.deterministic and rule.versus and rule.of == SUITE else ()
    return Judged(asked, decision, tuple(notes), _suspects(asked, run, base) if base and rule.versus else ())


def _incomparable(asked: Asked, run: Evidence, base: Evidence | None) -> str:
    """Why the numbers that a rule is about mean nothing, or not the same in both runs; empty where they do."""
    group, rule = asked.group, asked.rule
    if rule.kind in TIMED and (why := _badly_timed(rule, run, base if rule.versus else None)):
        return why
    if rule.kind in ("latency", "goodput"):
        calls = [call for trial in run.groups.get(group, ()) for call in trial.calls]
        failed = sum(call.failed for call in calls)
        if rule.kind == "latency" and rule.metric != "rollout" and failed > FAILED_CALLS * len(calls):
            return f"{failed} of {len(calls)} LLM calls failed, and failed calls have no latency"
        if rule.kind == "goodput" and not run.facts.slo:
            return "nobody said what a good call is: --agentbench-slo does"
    if score := asked.score:
        if missing := sum(score in trial.unscored for trial in run.groups.get(group, ())):
            return f"{missing} of its scores {'are' if missing > 1 else 'is'} missing: the scorer failed"
        here, there = run.scored_by(group, score), base.scored_by(group, score) if rule.versus and base else set()
        if here and there and here != there:
            return f"the baseline was scored in another way ({score} {', '.join(sorted(there))}, now {', '.join(sorted(here))})"
    return ""


def _badly_timed(rule: Rule, run: Evidence, base: Evidence | None) -> str:
    for evidence in filter(None, (run, base)):
        if evidence.facts.stopwatch == SATURATED:
            return f"the timings of {evidence.facts.run} are of a saturated client, not of the backend"
        if unusable := [title(name) for name in _needs(rule, evidence) if name in evidence.facts.unusable]:
            return f"{', '.join(unusable)} of {evidence.facts.run} is not usable: chunks arrived faster than the client's machine read them"
    if base and (there := base.facts.cache) != (here := run.facts.cache):
        return f"the prefix cache was {there} in the baseline, and is {here} now (--agentbench-cache)"
    return ""


def _needs(rule: Rule, evidence: Evidence) -> list[str]:
    """What a rule looks at, in the stopwatch's words; rates and durations need no stamp of an event."""
    if rule.kind == "goodput":
        return [f"goodput.{objective}" for objective in evidence.facts.slo]
    return [f"{rule.metric}.{rule.statistic}"] if rule.kind == "latency" else []


def _rests_on_too_little(asked: Asked, decision: Decision, run: Evidence) -> Iterator[str]:
    """Whether a claim about a suite rests on a part of it."""
    if asked.rule.kind not in OF_SCENARIOS:
        return
    if asked.rule.versus:
        total = decision.n + decision.missing.total
        if decision.n < ENOUGH * total:
            yield f"{decision.n} of {total} scenarios of the run and its baseline can be compared"
    elif not asked.any_part and decision.n < ENOUGH * (size := run.facts.scenarios.get(asked.group, 0)):
        yield f"{decision.n} of the suite's {size} scenarios were measured; a rule of --agentbench-gate judges any part"


def _notes(asked: Asked, run: Evidence, base: Evidence) -> Iterator[str]:
    """What may have changed beside the thing under test."""
    for part, sentence in DIFFERENT.items():
        here, there = run.hashes(asked.group, part), base.hashes(asked.group, part)
        if here and there and here != there:
            yield sentence
    ratios = run.facts.prefix_cache_hit_ratio, base.facts.prefix_cache_hit_ratio
    if asked.rule.kind in TIMED and ratios[0] is not None and ratios[1] is not None and abs(ratios[0] - ratios[1]) > CACHE_APART:
        yield f"prefix cache hits were {ratios[0] * 100:.0f} % of the prompt tokens, in the baseline {ratios[1] * 100:.0f} %"


def _broken_word(asked: Asked, run: Evidence, base: Evidence) -> Iterator[str]:
    """That a suite is not what it says, and how to find out."""
    new, old = (samples(each.groups.get(asked.group, ()), asked.rule.metric, falling=asked.falling) for each in (run, base))
    pairs, _ = pair(new, old)
    if differing := breaking(pairs):
        what = f"trials of {len(differing)} scenarios differ ({differing[0]})"
        yield f"the suite says that it is deterministic, but {what}: judged as any other"
    elif all(len(each.new.scores) == len(each.base.scores) == 1 for each in pairs.values()):
        yield "that the suite is deterministic is its word: one trial of each scenario cannot show it, two in a baseline can"


def _suspects(asked: Asked, run: Evidence, base: Evidence) -> tuple[Suspect, ...]:
    if asked.rule.kind != "score":
        return ()
    both = [samples(evidence.groups.get(asked.group, ()), asked.rule.metric, falling=asked.falling) for evidence in (run, base)]
    sign = -1 if asked.falling else 1
    new, old = ({scenario: [sign * score for score in each.scores] for scenario, each in found.items()} for found in both)
    same = {scenario for scenario in new if scenario in old and both[0][scenario].content == both[1][scenario].content}
    found = multiple.suspects({scenario: new[scenario] for scenario in new if scenario in same}, old)
    return tuple(replace(each, base=sign * each.base, new=sign * each.new) for each in found)


# ------------------------------------------------------------------------------------------------------------------ one rule


def _decide(asked: Asked, run: Evidence, base: Evidence | None, confidence: float) -> Decision:
    rule = asked.rule
    trials = run.groups.get(asked.group, ())
    old = base.groups[asked.group] if base else ()
    match rule.kind:
        case "score" | "passes":
            return _score(asked, trials, old, confidence)
        case "goodput":
            shares = _samples(trials, lambda trial: _good_share(trial, run))
            return against_limit(shares, rule.limit, confidence=confidence)
        case "latency":
            q = int(rule.statistic.removeprefix("p"))
            new = latencies(trials, rule.metric)
            if rule.versus:
                return compare_latency(new, latencies(old, rule.metric), q, rule.margin, confidence=CONFIDENCE)
            return latency_limit(new, q, rule.limit, confidence=CONFIDENCE)
        case "rate":
            return _fact(rule, run.facts.rates.get(rule.metric), base.facts.rates.get(rule.metric) if base else None, trials)
    return _fact(rule, sum(trial.status == rule.metric for trial in trials) / len(trials) if trials else None, None, trials)


def _score(asked: Asked, trials: Sequence[Trial], old: Sequence[Trial], confidence: float) -> Decision:
    rule, better = asked.rule, not asked.falling
    if rule.kind == "passes":
        return against_share(_passed(asked, trials), rule.pass_rate, rule.limit, of=rule.of, confidence=confidence)
    new = samples(trials, rule.metric, falling=asked.falling)
    base = samples(old, rule.metric, falling=asked.falling)
    every = [score for found in (new, base) for each in found.values() for score in each.scores]
    limits = (0.0, 1.0) if better and all(0 <= score <= 1 for score in every) else None
    if rule.versus:
        return compare(
            new,
            base,
            rule.margin,
            of=rule.of,
            limits=limits,
            confidence=confidence,
            higher_is_better=better,
            deterministic=asked.deterministic,
        )
    return against_limit(new, rule.limit, of=rule.of, limits=limits, confidence=confidence, higher_is_better=better)


def samples(trials: Iterable[Trial], score: str, *, falling: bool) -> dict[str, Sample]:
    """Scenario -> what was measured of it. An agent's error counts as 0, the worst; where less is better nothing is the worst."""

    def measured(trial: Trial) -> float | None:
        return 0.0 if trial.status == "agent_error" and not falling else trial.scores.get(score)

    return _samples(trials, measured)


def _passed(asked: Asked, trials: Iterable[Trial]) -> dict[str, Sample]:
    """Scenario -> 1 of each trial that passed, else 0; one in which the agent raised did not pass."""
    bar = asked.bar
    assert bar is not None  # `parse_rule` has seen to it

    def measured(trial: Trial) -> float | None:
        if trial.status == "agent_error":
            return 0.0
        value = trial.scores.get(bar.score)
        return None if value is None else float(bar.reached(value))

    return _samples(trials, measured)


def _samples(trials: Iterable[Trial], value: Callable[[Trial], float | None]) -> dict[str, Sample]:
    found: dict[str, list[float]] = {}
    known: dict[str, Trial] = {}
    lost: Counter[str] = Counter()
    for trial in trials:
        known[trial.scenario] = trial
        measured = value(trial)
        found.setdefault(trial.scenario, []).extend(() if measured is None else (measured,))
        lost[trial.scenario] += trial.status in LOST
    return {
        name: Sample(known[name].content.get("scenario", ""), tuple(scores), known[name].cluster, lost[name])
        for name, scores in found.items()
    }


def latencies(trials: Iterable[Trial], metric: str) -> list[Timing]:
    """Milliseconds of measured rollouts, or of their calls. Imported rollouts may have taken no time: it is unknown."""
    return [Timing(trial.scenario, trial.trial, trial.began_at, _milliseconds(trial, metric)) for trial in trials]


def _milliseconds(trial: Trial, metric: str) -> tuple[float, ...]:
    if metric == "rollout":
        values = [trial.duration_ms] if trial.status in ("ok", "limit") and trial.duration_ms else []
    else:
        values = [value for call in trial.calls if (value := call.ms.get(metric)) is not None]
    return tuple(max(value, SHORTEST_MS) for value in values)


def _good_share(trial: Trial, run: Evidence) -> float | None:
    known = [good for call in trial.calls if (good := call.good(run.facts.slo)) is not None]
    return sum(known) / len(known) if known else None


def _fact(rule: Rule, value: float | None, base: float | None, trials: Sequence[Trial]) -> Decision:
    """A number that a run simply has: nothing is inferred from it, so it has no interval."""
    blank = _undecided(rule, "")
    if value is None or (rule.versus and not base):
        return replace(blank, reason="the run has no such number" if value is None else "the baseline has no such number")
    estimate = value / base if rule.versus and base else value
    holds = estimate >= blank.threshold if rule.at_least else estimate <= blank.threshold
    return replace(
        blank,
        verdict=PASS if holds else FAIL,
        estimate=estimate,
        n=len({trial.scenario for trial in trials}),
        trials=(len(trials), 0),
        method="a fact",
    )


def _undecided(rule: Rule, reason: str) -> Decision:
    """Nothing known."""
    sign = -1 if rule.at_least else 1
    threshold = (1 + sign * rule.margin if rule.relative else sign * rule.margin) if rule.versus else rule.limit
    return Decision(INCONCLUSIVE, threshold, CONFIDENCE, 0, (0, 0), Missing(), reason=reason)
