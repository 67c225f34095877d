"""The sentences of the first screen of a comment on a pull or merge request."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime

from pytest_agentbench.gate.needed import Needed
from pytest_agentbench.records import RolloutKey, suite_of
from pytest_agentbench.reports import gate_phrases, phrases
from pytest_agentbench.reports.comparison_phrases import change
from pytest_agentbench.reports.document import Code, PageAddress, Text, spans
from pytest_agentbench.runs.results import ArmsCompared, BaselineRun, Changed, RuleResult
from pytest_agentbench.runs.run_file import Failure, Run
from pytest_agentbench.stats.decisions import Suspect

NO_BASELINE = "none: no rule compares this run with another one"

NO_RULE = "add a rule or a threshold to suite.yaml, so that the gate can judge"

NOTHING = "nothing"

NOTHING_MEASURED = "unknown, because no rollout was measured"

#: Characters that pytest's -k accepts in a word. Others than those of ASCII have another form in the id of a test.
_WORD = re.compile(r"[\w:+\-.\[\]/]+", re.ASCII)


def rules_passed(amount: int) -> str:
    """`all 3 rules of the gate passed`: the reason of a PASS."""
    named = {1: "the only rule", 2: "both rules"}.get(amount, f"all {amount} rules")
    return f"{named} of the gate passed"


def baseline(base: BaselineRun, suites: Sequence[str], run: Run, page: PageAddress) -> Text:
    """`run 20260101-000000, commit 0123456789ab, 12 days before this run`: a baseline, with `suites` if it is not the only one."""
    where = f" for {', '.join(suites)}" if suites else ""
    commit = (", commit ", Code(base.commit[:12], url=page)) if base.commit else (", commit unknown",)
    age = distance(base.finished_at, run.finished_at)
    return ("run ", Code(base.run), *commit, f"{f', {age} before this run' if age else ''}{where}")


def distance(earlier: str, later: str) -> str:
    """`12 days`: the time between two times in ISO 8601, in days, hours or minutes. Empty if one of them is unknown or they are swapped."""
    try:
        seconds = (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return ""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return phrases.count(int(seconds // size), unit)
    return "less than a minute" if seconds >= 0 else ""


def fell(rule: RuleResult, suspect: Suspect, suite: str, page: PageAddress) -> Text:
    """`banking-017 tsq 1.000 -> 0.000 (p 0.002)`: a scenario with a lower score than in the baseline, with its page."""
    _, scores = gate_phrases.change(rule, suspect, suite)
    chance = f"p {suspect.p:.3g}" if suspect.claimed else "not significant"
    return (Code(suspect.scenario, "scenario", page), scores, f" ({chance})")


def failed_test(test: Failure) -> Text:
    """`test_shop.py::test_rules[shop-1]: assert 1 == 2`: a failed test that is not about a threshold, with its message."""
    return (Code(test.id), ": ", Code(test.message))


def unmeasured(test: Failure, tests: int) -> Text:
    """`not measured: test_shop.py::test_rules[shop-1] and 3 more, because of: HTTP 500`: tests without a measurement, and one message."""
    others = f" and {tests - 1} more" if tests > 1 else ""
    return ("not measured: ", Code(test.id), f"{others}, because of: ", Code(test.message))


def arms(ab: ArmsCompared) -> Text:
    """`none, because this run compares its arms with each other: the others with careful`: the baseline of a session with arms."""
    return ("none, because this run compares its arms with each other: the others with ", Code(ab.arms[0].name))


def others(amount: int, ranked: bool) -> str:
    """`and 4 more`, or `and at least 4 more` if only the first scenarios of a ranking are known. Empty if there are none."""
    return f"and {'at least ' * ranked}{amount} more" if amount > 0 else ""


def below(scenario: str, score: str, value: float, threshold: float, suite: str, page: PageAddress) -> Text:
    """`banking-017 tsq 0.000, threshold 0.5`: a scenario with a score below its threshold, with its page."""
    where = f"{suite} " if suite else ""
    return (Code(scenario, "scenario", page), f" {where}{score} {value:.3f}, threshold {threshold:g}")


def tests(run: Run) -> str:
    """`tests: 18 passed, 2 below a threshold`: the number of tests by result. Empty if there are none."""
    below = run.gate.tests_below if run.gate else 0
    counts = phrases.tests(run) or (f"{run.tests.passed} passed" if run.tests.passed else "")
    parts = [counts, f"{below} below a threshold" if below else ""]
    return f"tests: {found}" if (found := ", ".join(filter(None, parts))) else ""


def setup(run: Run) -> Text:
    """`embedded, model m, concurrency 8, pytest-agentbench 0.1.0`: backend, model, versions of the engine and of this package."""
    server = run.identity.backend.server if run.identity else None
    engine = f", engine {server['version']}" if server and server.get("version") else ""
    version = run.environment.packages.get("pytest-agentbench")
    return (*spans(phrases.backend(run)), f"{engine}{f', pytest-agentbench {version}' if version else ''}")


def differences(changes: Sequence[Changed] | None, most: int) -> Text:
    """`differs from the baseline: model name: big -> small; ...`: the setup against that of the baseline."""
    if changes is None:
        return "differences from the baseline are unknown, because one of them does not contain its setup"
    if not changes:
        return "the same as that of the baseline, except for the commit"
    texts = [part for each in changes[:most] for part in ("; ", f"{each.part} ", Code(change(each)))][1:]
    more = phrases.more(len(changes) - most)
    return ("differs from the baseline: ", *texts, f"; {more}" if more else "")


def repeat(run: Run, tests: Sequence[RolloutKey]) -> Text:
    """Returns the command that runs only these tests of a run, or all tests if pytest's -k cannot name one of them.

    The brackets of a test's id are in the expression, because -k also matches parts of names: `banking-1` is a part of `banking-10`.
    """
    names: dict[str, list[str]] = {}
    for key in tests:
        names.setdefault(key.suite, []).append(f"[{key.id}]")
    if not names or not all(map(_WORD.fullmatch, (name for each in names.values() for name in each))):
        return ("repeat the tests: ", Code(shlex.join(run.command), "command"))
    chosen = {suite: " or ".join(each) for suite, each in names.items()}
    if len({suite_of(group, suite.variant) for group, suite in run.suites.items()}) > 1:  # Another suite may have the same ids.
        chosen = {suite: f"{suite} and ({each})" for suite, each in chosen.items()}
    return ("repeat these scenarios: ", Code(shlex.join([*run.command, "-k", " or ".join(chosen.values())]), "command"))


def promote(run: Run) -> Text:
    """Returns the command that makes a run the baseline although it is worse."""
    return ("if the change is intended: ", Code(f"agentbench baseline promote {run.id} --reason TEXT", "command"))


def more_trials(command: Sequence[str], need: Needed | None) -> Text:
    """Returns the command of a new run with all trials that an undecided rule needs. Empty if it needs something else.

    Adding trials to the same run would be another look at the same data, for which the error rate of the verdict does not allow.
    """
    if need is None or not need.total:
        return ""
    words = [*(word for word in command if not word.startswith("--agentbench-trials=")), f"--agentbench-trials={need.total}"]
    return (f"a new run with all {need.total} trials of each scenario: ", Code(shlex.join(words), "command"))


def resume(command: str) -> Text:
    """Returns the command that runs what is left."""
    return ("run what is left, with the run directory of this job: ", Code(command, "command"))


def check(run: Run) -> Text:
    """Returns the command that shows what this machine lacks."""
    return ("see what the machine lacks: ", Code(f"agentbench doctor {shlex.quote(run.backend.name)}", "command"))


def again(command: Sequence[str]) -> Text:
    """Returns the command of a run that has to be repeated as a whole."""
    return ("run it again: ", Code(shlex.join(command), "command"))


def report(run: Run, page: PageAddress) -> Text:
    """Returns the name of the run, whose page has the whole report."""
    return ("the report of run ", Code(run.id, url=page), " has all rollouts")
