"""The gate of a session: which rules apply to which suites, the baselines, and the effect on tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import default_baseline, find_baseline, read_evidence
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial, samples
from pytest_agentbench.gate.rules import QUESTION_KINDS, Rule, SuiteRule, mean_rules, parse_rule
from pytest_agentbench.gate.run_pair import identity_changes
from pytest_agentbench.gate.verdict import CONFIDENCE, RuleVerdict, cannot_measure, judge_rules, session_verdict
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.checks import rule_fault
from pytest_agentbench.rollouts.compile import CompiledSuite
from pytest_agentbench.runs.builder import pass_threshold_of
from pytest_agentbench.runs.results import BaselineRun, GateResult, InterimLook, RuleResult
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.decisions import FAIL, POPULATION, RUN, SUITE
from pytest_agentbench.stats.pass_rates import PassThreshold
from pytest_agentbench.stats.power import Design, least_margin, spread, trials_for
from pytest_agentbench.suites.arms import Arm
from pytest_agentbench.suites.suite import Suite

MARGIN = 0.05  # Margin of the main score if a baseline is given without a rule about it
POWER = 0.8  # Probability with which an unchanged setup should pass


@dataclass(frozen=True)
class Gate:
    """The gate rules of a session, with the baselines that they compare with."""

    rules: Sequence[SuiteRule]
    baselines: Mapping[str, Evidence] = field(default_factory=dict)  # group -> its baseline; groups without one are absent
    decides: bool = True  # whether the verdict affects the exit status, or is only shown
    insists: bool = False  # whether the gate comes from this session's options, so that it must give a verdict

    @property
    def compared(self) -> dict[str, list[str]]:
        """Group (suite or `suite-variant`) -> its scores that are compared with a baseline. Their thresholds fail no test.

        Empty if the verdict does not affect the exit status (`decides`).
        """
        scores: dict[str, list[str]] = {}
        for each in self.rules if self.decides else ():
            base = self.baselines.get(each.group)
            if each.rule.versus and each.rule.kind == "score" and base and each.group in base.groups:
                scores.setdefault(each.group, []).append(each.rule.metric)
        return scores

    def judge(self, run: Run, trials: Sequence[Trial], tests_below: int) -> GateResult | None:
        """Returns the result of the gate for a run, or None if no suite with rules ran and no option requests a verdict (`insists`).

        `trials` has the scores of the run's rollouts. `tests_below` is the number of tests below a threshold that did not fail.
        """
        evidence = Evidence.of(RunFacts.of(run), trials)
        ran = [each for each in self.rules if each.group in run.suites]
        if not ran and not self.insists:
            return None
        judged = judge_rules(ran, evidence, self.baselines)
        return GateResult(
            verdict=session_verdict(judged),
            decides=self.decides,
            tests_below=tests_below,
            compared=tuple(sorted(self.compared)),
            baselines={group: _baseline_run(self.baselines[group], run, group) for group in run.suites if group in self.baselines},
            rules=tuple(map(rule_result, judged)),
            unmeasured=tuple(group for group in run.suites if cannot_measure(group, ran, evidence)),
        )

    @property
    def interim_rules(self) -> list[SuiteRule]:
        """Rules that are checked between trial rounds, and for which rounds are added until they are decided."""
        return [each for each in self.rules if each.may_decide_early]

    def look(self, run: Evidence) -> InterimLook:
        """Judges a run after a trial round. Returns the verdict, and whether it stands, so that no further round is needed.

        It stands if a rule has failed, or if more trials cannot change the verdict on any rule.
        """
        rounds = run.facts.rounds
        judged = judge_rules([each for each in self.interim_rules if each.group in run.groups], run, self.baselines)
        verdict = session_verdict(judged)
        stands = verdict == FAIL or not any(each.is_open(rounds) for each in judged)
        return InterimLook(rounds, verdict, stands, tuple(map(rule_result, judged)))

    def population(self, group: str) -> set[str]:
        """Returns the scores of a group (suite and variant) that have a gate rule `of population`.

        Such a rule is about all scenarios of this kind, not only those of the suite.
        """
        return {each.rule.metric for each in self.rules if each.group == group and each.rule.of == POPULATION}

    def warnings(self, compiled: Sequence[CompiledSuite], limit: int | None, rounds: int | None = None) -> Iterator[str]:
        """Yields a sentence for each rule that needs more trials, or whose margin (accepted loss) is too small for the size of its suite.

        `rounds` is the largest number of trial rounds if they are added until the verdict stands.
        """
        sizes = {
            group: (len(judged_scenarios(each.suite, variant, limit)), rounds or each.trials) for each, variant, group in _groups(compiled)
        }
        for each in self.rules:
            scenarios, trials = sizes[each.group]
            if each.rule.kind == "passes" and trials < (k := each.rule.pass_rate.k):
                yield f"{each.group}: `{each.rule.text}` needs {k} trials of each scenario; use --agentbench-trials={k}"
            compared = each.rule.versus and each.rule.kind == "score" and each.rule.margin > 0
            uncertain = compared and each.scale.width and not each.deterministic and scenarios > 1
            if uncertain and (why := self._why_too_small(each, scenarios, trials)):
                size = f"{scenarios} scenarios with {trials} trial{'s' * (trials > 1)}"
                yield f"{each.group}: the margin of `{each.rule.text}` is too small for {size}: {why}"

    def _why_too_small(self, suite_rule: SuiteRule, scenarios: int, trials: int) -> str:
        """Returns why the margin of a rule (the accepted loss) is too small for so many scenarios and trials, or an empty text."""
        width = suite_rule.scale.width or 1.0
        margin = suite_rule.rule.margin / width  # The formulas below are for scores between 0 and 1.
        within, base_trials = self._noise(suite_rule, width)
        design = Design(scenarios, trials, within or 0.0, min(trials, base_trials or trials), suite_rule.rule.of, CONFIDENCE)
        if suite_rule.rule.of == POPULATION and (bound := replace(design, within=0.0).smallest_margin()) > margin:
            return f"no result passes with a margin below {bound * width:.3f}, however many trials; add scenarios, or use `of suite`"
        fewest = min(trials, base_trials or trials)
        if suite_rule.rule.of == SUITE and margin < least_margin(scenarios, fewest):
            least, takes = least_margin(scenarios, fewest) * width, trials_for(margin, scenarios)
            both = f" for a new baseline, which has {base_trials}, and for this run" if 0 < base_trials < takes else ""
            return f"no result passes with a margin below {least:.3f}; use --agentbench-trials={takes}{both}"
        if within is not None and (smallest := design.smallest_margin(POWER)) > margin:
            return (
                f"with the baseline's noise, unchanged runs pass 4 times out of 5 only with a margin of {smallest * width:.3f} or more; "
                "run more trials, or widen the margin"
            )
        return ""

    def _noise(self, suite_rule: SuiteRule, width: float) -> tuple[float | None, int]:
        """Returns the variance of a score between trials of one scenario in the baseline, and the baseline's fewest trials of a scenario.

        `width` is the width of the score's range. The variance is divided by the square of `width`, so that it is as for a score from 0
        to 1. It is None if the baseline does not show it.
        """
        base = self.baselines.get(suite_rule.group)
        known = samples(base.groups.get(suite_rule.group, ()), suite_rule.rule.metric, suite_rule.scale) if base else {}
        scores = {name: each.scores for name, each in known.items() if each.scores}
        fewest = min(map(len, scores.values()), default=0)
        repeated = any(len(each) > 1 for each in scores.values()) and len(scores) > 1
        return spread(scores).within / width**2 if repeated else None, fewest


class GateOptions(Protocol):
    """The options that define a gate, of a session or of a command that judges a finished run."""

    @property
    def gate(self) -> tuple[str, ...]: ...

    @property
    def thresholds(self) -> Mapping[str, float]: ...

    @property
    def baseline(self) -> str | None: ...

    @property
    def reports_directory(self) -> Path: ...

    @property
    def verdict(self) -> str: ...

    @property
    def ab(self) -> tuple[Arm, ...]: ...


def make_gate(compiled: Sequence[CompiledSuite], settings: GateOptions) -> Gate | None:
    """Returns the gate that suites and options define, or None if they define none. Raises ConfigError for invalid rules.

    In an A/B session only rules from thresholds apply, to each arm.
    """
    if settings.ab and (settings.gate or settings.baseline):
        raise ConfigError("--agentbench-ab compares its arms with each other; leave out --agentbench-gate and --agentbench-baseline")
    explicit = read_evidence(find_baseline(settings.baseline, settings.reports_directory)) if settings.baseline else None
    groups = [*_groups(compiled)]
    if explicit and explicit.facts.recorded:
        raise ConfigError(f"{settings.baseline} cannot be a baseline: its answers come from a recording; name a run that called a model")
    if explicit and groups and not any(group in explicit.groups for _, _, group in groups):
        known, here = ", ".join(explicit.groups) or "nothing", ", ".join(group for _, _, group in groups)
        raise ConfigError(
            f"the baseline {settings.baseline} has results of {known}, but this session has {here}; name a baseline of these suites"
        )
    suite_rules: list[SuiteRule] = []
    baselines: dict[str, Evidence] = {}
    typed = {id(each): rules for each, rules in zip(compiled, command_line_rules(settings.gate, compiled), strict=True)}
    for each, _, group in groups:
        candidates = rules_of(each, typed[id(each)], settings.thresholds)
        rules = [(any_part, rule) for any_part, rule in candidates if (rule.of == RUN and rule.kind in QUESTION_KINDS) or not settings.ab]
        if explicit and group in explicit.groups and not any(rule.versus for _, rule in rules):
            rules.append((True, _default_rule(each.suite)))
        about = each.suite.deterministic, _pass_threshold(each)
        suite_rules += [SuiteRule(group, rule, each.suite.scale(rule.metric), any_part, *about) for any_part, rule in rules]
        promoted = default_baseline(each.name, settings.reports_directory)
        if explicit and group in explicit.groups:
            baselines[group] = explicit
        elif promoted.is_file() and any(rule.versus for _, rule in rules):
            baselines[group] = _promoted(each, promoted)
        elif explicit:
            baselines[group] = explicit  # It does not contain this group, and the verdict will say so.
    insists = bool(settings.gate or settings.baseline)
    return Gate(suite_rules, baselines, settings.verdict == "gate", insists) if suite_rules or insists else None


def _promoted(compiled: CompiledSuite, path: Path) -> Evidence:
    """Reads the promoted baseline of a suite. Raises ConfigError if it has no results of the suite with any of its variants."""
    evidence, suite = read_evidence(path), compiled.suite
    known = {RolloutKey(suite.name, "", variant).group for variant in ("default", *suite.variants, *compiled.variants)}
    if known.isdisjoint(evidence.groups):
        raise ConfigError(
            f"the baseline {path} has results of {', '.join(evidence.groups) or 'nothing'}, but none of the suite {suite.name}; "
            f"replace it with `agentbench baseline promote RUN --suite {suite.name} --reason TEXT`, or name another one with "
            "--agentbench-baseline"
        )
    return evidence


def judge_again(run: Run, directory: Path, compiled: Sequence[CompiledSuite], options: GateOptions) -> tuple[GateResult | None, Evidence]:
    """Judges a finished run. Returns the result of the gate (None without rules) and the evidence (data of the run) that it is based on.

    Raises ConfigError for invalid rules, and for a run that is its own baseline.
    """
    gate = make_gate(compiled, options)
    if gate and any(base.facts.run == run.id for base in gate.baselines.values()):
        raise ConfigError(f"the run {run.id} is its own baseline; name another run with --baseline")
    evidence = read_evidence(directory)
    trials = [trial for trials in evidence.groups.values() for trial in trials]
    below = run.gate.tests_below if run.gate else 0
    return (gate.judge(run, trials, below) if gate else None), evidence


def judged_scenarios(suite: Suite, variant: str, limit: int | None) -> list[str]:
    """Returns the ids of the scenarios that a session runs of a suite, without those in quarantine."""
    left_out = {each.scenario for each in suite.quarantine}
    return [each.id for each in suite.scenarios[:limit][: suite.sizes.get(variant)] if each.id not in left_out]


def rules_of(compiled: CompiledSuite, typed: Sequence[Rule], thresholds: Mapping[str, float]) -> Iterator[tuple[bool, Rule]]:
    """Yields each rule of a suite, and whether it comes from the command line.

    `typed` and `thresholds` come from the command line. A rule in `typed` replaces the suite's own rules about the same value.
    """
    about = {rule.about for rule in typed}
    yield from ((False, rule) for rule in compiled.rules if rule.about not in about)
    yield from ((True, rule) for rule in typed)
    means = mean_rules(compiled.thresholds, compiled.suite.scales)
    yield from ((f"{rule.metric}.mean" in thresholds, rule) for rule in means if rule.about not in about)


def command_line_rules(texts: Sequence[str], compiled: Sequence[CompiledSuite]) -> list[list[Rule]]:
    """Returns for each suite the rules of the command line that apply to it.

    Raises ConfigError for a rule that applies to no suite, a rule that a suite with that score cannot apply, and a rule that every run,
    or no run, would pass.
    """
    rules: list[list[Rule]] = [[] for _ in compiled]
    for text in texts:
        refused = 0
        for each, own in zip(compiled, rules, strict=True):
            try:
                own.append(_parsed(each, text))
            except ConfigError:
                refused += 1
                if text.startswith(tuple(f"{score}.mean" for score in each.suite.score_names)):
                    raise
        if 0 < refused == len(compiled):
            every = dict.fromkeys(name for each in compiled for name in each.suite.score_names)
            parse_rule(text, [*every], passes=any(map(_pass_threshold, compiled)))
    for each, own in zip(compiled, rules, strict=True):
        for fault in filter(None, (rule_fault(each.suite, rule) for rule in own)):
            raise ConfigError(fault)
    return rules


def _parsed(compiled: CompiledSuite, text: str) -> Rule:
    suite = compiled.suite
    return parse_rule(text, suite.score_names, suite.scales, passes=_pass_threshold(compiled) is not None)


def _pass_threshold(compiled: CompiledSuite) -> PassThreshold | None:
    return pass_threshold_of(compiled.suite.score_names, compiled.thresholds, compiled.suite.scales)


def _default_rule(suite: Suite) -> Rule:
    main = suite.score_names[0]
    scale = suite.scale(main)
    text = f"{main}.mean {scale.sign} {'' if scale.falling else '-'}{MARGIN} vs baseline"
    return parse_rule(text, suite.score_names, suite.scales)


def _groups(compiled: Sequence[CompiledSuite]) -> Iterator[tuple[CompiledSuite, str, str]]:
    """Yields (suite, variant, `suite` or `suite-variant`) for each variant that this session may run."""
    for each in compiled:
        yield from ((each, variant, RolloutKey(each.name, "", variant).group) for variant in each.variants)


def _baseline_run(baseline: Evidence, run: Run, group: str) -> BaselineRun:
    facts = baseline.facts
    was, now = facts.identity, run.identity
    setup = None if was is None or now is None else tuple(identity_changes(was, now, [group]))
    return BaselineRun(facts.run, facts.commit, facts.finished_at, setup)


def rule_result(judged: RuleVerdict) -> RuleResult:
    """Returns the verdict on a rule in the form that run.json stores."""
    rule = judged.suite_rule.rule
    return RuleResult(
        **vars(judged.decision),
        suite=judged.suite_rule.group,
        rule=rule.text,
        kind=rule.kind,
        vs_baseline=rule.versus,
        width=judged.suite_rule.scale.width if rule.kind == "score" else None,
        notes=judged.notes,
        suspects=judged.suspects,
    )
