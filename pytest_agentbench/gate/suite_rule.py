"""A gate's rule for one suite under one variant, with what the suite says of the score."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.gate.rules import Rule
from pytest_agentbench.records import UNDECLARED, Scale
from pytest_agentbench.stats.decisions import RUN
from pytest_agentbench.stats.pass_rates import Bar

#: Kinds that are about scenarios, those in quarantine left out; the others are about a run.
OF_SCENARIOS = ("score", "passes", "latency", "goodput")


@dataclass(frozen=True)
class SuiteRule:
    """A rule for one suite under one variant."""

    group: str
    rule: Rule
    scale: Scale = UNDECLARED  # of the score that the rule is about
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
    def floor(self) -> Bar:
        """What a rollout has to reach to pass, for a rule that asks it: `parse_rule` has seen to it."""
        assert self.bar is not None
        return self.bar

    @property
    def is_about_scenarios(self) -> bool:
        """Whether it infers something about scenarios, so that those in quarantine are left out; others are about a run as it is."""
        return self.rule.kind in OF_SCENARIOS and self.rule.of != RUN

    @property
    def is_looked_at(self) -> bool:
        """Whether it may decide before the last round of trials, as those of values with limits; others are judged once, in the end."""
        return self.rule.of != RUN and (self.rule.kind == "passes" or (self.rule.kind == "score" and self.scale.limits is not None))
