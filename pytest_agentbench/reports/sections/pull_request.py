"""The first screen of a comment on a pull or merge request. It answers five questions about a run, in this order:

why the verdict, which baseline, what fell, what differs in the setup, and what to do. It links to pages on GitHub and GitLab: a commit, a
scenario in its data file, and the report of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, EXITS, IMPORTED, INTERRUPTED, NO_GATE, SKIPPED
from pytest_agentbench.gate.needed import needed
from pytest_agentbench.records import RolloutKey, suite_of
from pytest_agentbench.records.rollout import scenario_thresholds
from pytest_agentbench.reports import comment_phrases, gate_phrases, phrases
from pytest_agentbench.reports.document import NOWHERE, Fact, Finding, PageAddress, Section, plain, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.headline import deciding_rules
from pytest_agentbench.reports.sections.arms import TONES, essentials
from pytest_agentbench.reports.view import failed_tests, ranking_of, suspects, tone, unmeasured, worst_first
from pytest_agentbench.runs.results import BaselineRun, Changed, RuleResult
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, RANKED, Suspect

LARGEST = 32 << 20  # bytes of a data file that is searched for the lines of scenarios


@dataclass(frozen=True)
class Pages:
    """The pages of the CI job that runs now. Every address is empty outside of CI."""

    repository: str = ""  # address of the repository, before `commit/...` and `blob/...`
    commit: str = ""  # commit of the files
    checkout: Path = Path()  # folder of the files
    report: PageAddress = NOWHERE  # page with the report of the run: on GitHub the page of the workflow run, which lists its artifacts

    def of_commit(self, commit: str) -> PageAddress:
        """Returns the page of a commit."""
        return PageAddress(f"{self.repository}/commit/{quote(commit)}") if self.repository else NOWHERE

    def of_scenarios(self, run: Run, group: str, scenarios: Iterable[str]) -> dict[str, PageAddress]:
        """Returns scenario -> page of its data, at its line if it is found. Empty if the data are not in the repository."""
        suite = run.suites.get(group)
        file = Path(suite.folder, suite.dataset.file) if suite and suite.dataset.file else None
        if file is None or not self.repository or not self.commit or not file.is_relative_to(self.checkout):
            return {}
        place = f"{quote(self.commit)}/{quote(str(file.relative_to(self.checkout)))}"
        if file.is_dir():
            folders = (each for each in scenarios if re.fullmatch(r"[\w.-]*\w", each) and (file / each).is_dir())
            return {each: PageAddress(f"{self.repository}/tree/{place}/{quote(each)}") for each in folders}
        lines = lines_of(file, scenarios)
        return {each: PageAddress(f"{self.repository}/blob/{place}{f'#L{lines[each]}' if each in lines else ''}") for each in scenarios}


def pages_of(run: Run, directory: Path, environment: Mapping[str, str]) -> Pages:
    """Returns the pages of the job with this environment, for a run in this directory."""
    known = run.environment.git.commit if run.environment.git else ""
    if (server := environment.get("GITHUB_SERVER_URL")) and (name := environment.get("GITHUB_REPOSITORY")):
        job = f"{server}/{name}/actions/runs/{environment['GITHUB_RUN_ID']}" if "GITHUB_RUN_ID" in environment else ""
        checkout = Path(environment.get("GITHUB_WORKSPACE", ""))
        return Pages(f"{server}/{name}", known or environment.get("GITHUB_SHA", ""), checkout, PageAddress(job))
    if project := environment.get("CI_PROJECT_URL"):
        checkout, job = Path(environment.get("CI_PROJECT_DIR", "")), environment.get("CI_JOB_URL", "")
        kept = job and directory.is_relative_to(checkout)
        report = f"{job}/artifacts/file/{quote(str(directory.relative_to(checkout)))}/report.html" if kept else job
        return Pages(f"{project}/-", known or environment.get("CI_COMMIT_SHA", ""), checkout, PageAddress(report))
    return Pages()


def lines_of(file: Path, scenarios: Iterable[str]) -> dict[str, int]:
    """Returns scenario -> first line of a data file that contains its id, counted from 1. Leaves out those that are not found."""
    names = "|".join(map(re.escape, sorted(scenarios, key=len, reverse=True)))
    found: dict[str, int] = {}
    if not names or not file.is_file() or file.stat().st_size > LARGEST:
        return found
    pattern = re.compile(rf"(?<![\w.-])(?:{names})(?![\w.-])")
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            for match in pattern.finditer(line):
                found.setdefault(match[0], number)
    return found


MOST = 5  # scenarios, rules and differences that are named
REPEATED = 20  # scenarios that the command to repeat names

#: Parts of a setup, the most likely causes of a difference first. The commit is in the line of the baseline.
PARTS = ("model", "backend", "agent", "prompts", "tools", "packages", "options", "scoring", "data", "hardware", "host", "more")


def section(run: Run, pages: Pages) -> Section:
    """Returns the five answers."""
    fallen = [*_fallen(run)]
    parts = (
        _labelled("why", _why(run)),
        _labelled("baseline", _baselines(run, pages), comment_phrases.NO_BASELINE),
        _labelled("fell", _fell(run, fallen, pages), comment_phrases.NOTHING if _is_measured(run) else comment_phrases.NOTHING_MEASURED),
        _labelled("setup", _setup(run)),
        _labelled("to do", _to_do(run, fallen, pages), comment_phrases.NOTHING),
    )
    found = of("", [fact for part in parts for fact in part])
    assert found is not None
    return found


def _labelled(label: str, findings: Iterator[Fact], otherwise: str = "") -> list[Fact]:
    """Returns those facts that have words, the first one with the label. Without any, a fact that says so."""
    kept = [each for each in findings if plain(phrases.words(each.content))] or [Fact("", otherwise)]
    return [replace(kept[0], label=label), *kept[1:]]


def _why(run: Run) -> Iterator[Fact]:
    rules = worst_first(run.gate.rules) if run.gate else []
    open_rules = [rule for rule in rules if rule.verdict != PASS]
    if run.backend.failure:
        yield Fact("", say(phrases.backend_failure, run), "bad")
    tests, is_by_rules = Fact("", say(comment_phrases.tests, run)), any(rule.verdict == run.verdict for rule in rules)
    if not is_by_rules:
        yield tests
    for group in unmeasured(run).values():
        yield Fact("", say(comment_phrases.unmeasured, group[0], len(group)), "bad")
    yield from (Fact("", say(gate_phrases.result, rule), tone(rule.verdict)) for rule in open_rules[:MOST])
    yield Fact("", say(phrases.more, len(open_rules) - MOST, "rules"))
    if rules and not open_rules:
        yield Fact("", say(comment_phrases.rules_passed, len(rules)), "good")
    if is_by_rules:
        yield tests


def _is_measured(run: Run) -> bool:
    return any(mean.mean is not None for suite in run.suites.values() for mean in suite.scores.values())


def _baselines(run: Run, pages: Pages) -> Iterator[Fact]:
    if run.ab:
        yield Fact("", say(comment_phrases.arms, run.ab))
    suites: dict[str, list[str]] = {}
    bases: dict[str, BaselineRun] = {}
    for group, base in run.gate.baselines.items() if run.gate else ():
        suites.setdefault(base.run, []).append(group)
        bases[base.run] = base
    for name, base in bases.items():
        named = suites[name] if len(bases) > 1 else ()
        yield Fact("", say(comment_phrases.baseline, base, named, run, pages.of_commit(base.commit or "")))


@dataclass(frozen=True)
class Fallen:
    """A scenario that fell: below its threshold, or against the baseline, in which case it has a rule."""

    group: str
    scenario: str
    score: str = ""
    value: float = 0.0
    threshold: float = 0.0
    rule: RuleResult | None = None
    suspect: Suspect | None = None

    def say(self, suite: str, page: PageAddress) -> Finding:
        """Returns the sentence about it, with the name of the `suite` if that is given."""
        if self.rule is not None and self.suspect is not None:
            return say(comment_phrases.fell, self.rule, self.suspect, suite, page)
        return say(comment_phrases.below, self.scenario, self.score, self.value, self.threshold, suite, page)


def _fallen(run: Run) -> Iterator[Fallen]:
    """Yields the scenarios that fell, each once: significant falls, other lower scores if a rule did not pass, scores below a threshold."""
    rules = run.gate.rules if run.gate else ()
    lower = [*suspects(rules), *((rule, each) for rule in rules if rule.verdict != PASS for each in ranking_of(rule))]
    seen = set()
    for rule, each in lower:
        if (key := (rule.suite, each.scenario)) not in seen:
            seen.add(key)
            yield Fallen(*key, rule=rule, suspect=each)
    for group, suite in run.suites.items():
        score, scale = suite.main_score, suite.scales[suite.main_score]
        is_left_to_gate = run.gate is not None and run.gate.decides_about(group, score)
        threshold = None if is_left_to_gate else scenario_thresholds(suite.thresholds).get(score)
        excused = {each.scenario for each in suite.quarantined}
        for result in suite.scenarios if threshold is not None else ():
            value = result.scores.get(score)
            if value is not None and threshold is not None and scale.loss(value) > scale.loss(threshold) and result.scenario not in excused:
                yield Fallen(group, result.scenario, score, value, threshold)


def _fell(run: Run, fallen: Sequence[Fallen], pages: Pages) -> Iterator[Fact]:
    groups = {each.group for each in fallen}
    for group in groups:
        names = [each.scenario for each in fallen[:MOST] if each.group == group]
        addresses = pages.of_scenarios(run, group, names)
        yield from (
            Fact("", each.say(group if len(groups) > 1 else "", addresses.get(each.scenario, NOWHERE)), "bad")
            for each in fallen[:MOST]
            if each.group == group
        )
    if ab := run.ab:
        worse = [each for each in essentials(ab) if TONES.get(each.finding) == "bad"]
        yield from (Fact("", say(gate_phrases.comparison, ab, replace(each, reason="")), "bad") for each in worse)
    tests = [] if fallen else failed_tests(run)
    yield from (Fact("", say(comment_phrases.failed_test, each), "bad") for each in tests[:MOST])
    yield Fact("", say(phrases.more, len(tests) - MOST))
    ranked = any(len(ranking_of(rule)) >= RANKED for rule in (run.gate.rules if run.gate else ()))
    yield Fact("", say(comment_phrases.others, len(fallen) - MOST, ranked))


def _setup(run: Run) -> Iterator[Fact]:
    yield Fact("", say(comment_phrases.setup, run))
    known: dict[tuple[str, str, str], Changed] = {}
    bases = run.gate.baselines.values() if run.gate else ()
    for each in (change for base in bases for change in base.setup or ()):
        if each.part in PARTS:
            known.setdefault((each.part, each.path, repr(each.new)), each)
    changes = sorted(known.values(), key=lambda each: PARTS.index(each.part))
    if bases:
        unknown = any(base.setup is None for base in bases)
        yield Fact("", say(comment_phrases.differences, None if unknown else changes, MOST), "open" if changes or unknown else "")


def _to_do(run: Run, fallen: Sequence[Fallen], pages: Pages) -> Iterator[Fact]:
    if run.verdict in (PASS, IMPORTED):
        return
    if run.resume and run.verdict in (EXITS[CANNOT_MEASURE].verdict, EXITS[INTERRUPTED].verdict):
        yield Fact("", say(comment_phrases.resume, run.resume))
    elif run.verdict == FAIL:
        yield Fact("", say(comment_phrases.repeat, run, [*_tests_of(run, fallen[:REPEATED])]))
        if run.gate and any(rule.vs_baseline and rule.verdict == FAIL for rule in run.gate.rules):
            yield Fact("", say(comment_phrases.promote, run))
    elif run.verdict == INCONCLUSIVE:
        yield from _undecided(run)
    elif run.verdict == NO_GATE:
        yield Fact("", comment_phrases.NO_RULE)
    elif run.verdict == SKIPPED:
        yield Fact("", say(comment_phrases.check, run))
    else:
        yield Fact("", say(comment_phrases.again, run.command))
    yield Fact("", say(comment_phrases.report, run, pages.report))


def _tests_of(run: Run, fallen: Sequence[Fallen]) -> Iterator[RolloutKey]:
    """Yields what the tests of scenarios that fell are about: each of their trials."""
    for each in fallen:
        suite = run.suites[each.group]
        name = suite_of(each.group, suite.variant)
        yield from (RolloutKey(name, each.scenario, suite.variant, trial) for trial in range(1, max(1, suite.trials) + 1))


def _undecided(run: Run) -> Iterator[Fact]:
    rules = [rule for rule in run.gate.rules if rule.verdict == INCONCLUSIVE] if run.gate else []
    reasons = dict.fromkeys(map(gate_phrases.reason, rules))
    yield from (Fact("", reason) for reason in [*reasons][:MOST])
    for need in (needed(rule, run) for rule in deciding_rules(run)[:1]):
        yield Fact("", say(gate_phrases.needs, need))
        yield Fact("", say(comment_phrases.more_trials, run.command, need))
