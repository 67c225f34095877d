"""A Run: everything one session measured, derived from its journal, as run.json stores it and reports print it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.lib.whole_file import write_whole
from pytest_agentbench.metrics.answers import AnswerCounts
from pytest_agentbench.metrics.drafts import DraftCounts
from pytest_agentbench.metrics.efficiency import Spending
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.metrics.roles import Roles
from pytest_agentbench.records import STATUSES, UNDECLARED, Json, Rollout, Scale, scale_in
from pytest_agentbench.runs.codec import plain, read
from pytest_agentbench.runs.contents import SCHEMA, Environment, Run
from pytest_agentbench.runs.directory import directory_with
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.results import (
    Mean,
    Means,
    Passes,
    PassMean,
    QuarantineResult,
    RetriedMeans,
    ScenarioPasses,
    ScenarioScores,
    ScoredBy,
    SuiteResult,
    UnmeasuredRollout,
    WorstScore,
)
from pytest_agentbench.runs.scorer_failures import ScorerFailures
from pytest_agentbench.runs.tasks import Tasks
from pytest_agentbench.runs.triage import MistakeCounts
from pytest_agentbench.stats.binary import binomial_interval
from pytest_agentbench.stats.decisions import POPULATION, SUITE
from pytest_agentbench.stats.means import Interval, scenarios_interval
from pytest_agentbench.stats.pass_rates import Bar, PassRate, pass_counts
from pytest_agentbench.suites.quarantine import Quarantined
from pytest_agentbench.suites.suite import Suite, question, score_name

FILE = "run.json"
WORST = 5  # scenarios that reports show
MOST_K = 10  # pass@k and pass^k are told up to this k

#: What a run may owe its numbers to, beside the backend.
PACKAGES = (
    "pytest-agentbench",
    "pytest",
    "pytest-xdist",
    "aiohttp",
    "openai",
    "uvloop",
    "orjson",
    "pydantic",
    "numpy",
    "scipy",
    "bfcl-eval",
)


@dataclass
class SuiteTally:
    """What is counted of one suite while its rollouts are read."""

    statuses: Counter[str] = field(default_factory=Counter)
    clusters: dict[str, str | None] = field(default_factory=dict)  # scenario -> the cluster that it is of
    retried: int = 0
    retried_scores: dict[str, dict[bool, dict[str, list[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: {True: defaultdict(list), False: defaultdict(list)})
    )  # score -> whether it took more than one attempt -> scenario -> values
    scores: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # evaluable: score -> scenario -> values
    agent_errors: dict[str, int] = field(default_factory=Counter)  # scenario -> rollouts
    score_errors: Counter[str] = field(default_factory=Counter)
    scorer_failures: ScorerFailures = field(default_factory=ScorerFailures)
    worst: list[WorstScore] = field(default_factory=list)  # scenarios, each by its worst trial: the worst first, equal ones by id
    best: float | None = None  # first score: the best value that was measured
    errors: list[UnmeasuredRollout] = field(default_factory=list)  # those of the lowest ids
    answers: AnswerCounts = field(default_factory=AnswerCounts)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    roles: Roles = field(default_factory=Roles)
    mistakes: MistakeCounts = field(default_factory=MistakeCounts)
    tasks: Tasks = field(default_factory=Tasks)
    sandboxes: set[str] = field(default_factory=set)
    spending: Spending = field(default_factory=Spending)

    def add(self, rollout: Rollout, main_score: str, scale: Scale = UNDECLARED) -> None:
        """Counts a rollout; `scale` is that of the suite's main score."""
        self.answers.add(rollout)
        self.drafts.add(rollout)
        self.roles.add(rollout)
        self.spending.add(rollout)
        self.mistakes.add(rollout)
        self.tasks.add(rollout)
        self.sandboxes |= {rollout.sandbox} - {""}
        self.statuses[rollout.status] += 1
        self.clusters[rollout.scenario] = rollout.cluster
        self.retried += bool(rollout.earlier_attempts)
        for name, score in rollout.scores.items():
            self.scores[name][rollout.scenario].append(float(score))
            self.retried_scores[name][bool(rollout.earlier_attempts)][rollout.scenario].append(float(score))
        if rollout.status == "agent_error":
            self.agent_errors[rollout.scenario] += 1
        self.score_errors.update(rollout.score_errors.keys())
        self.scorer_failures.add(rollout)
        if not rollout.evaluable:
            insort(self.errors, UnmeasuredRollout(rollout.key.id, rollout.status, rollout.reason), key=attrgetter("id"))
            del self.errors[2 * WORST :]
        if main_score in rollout.scores:
            value = float(rollout.scores[main_score])
            self.best = value if self.best is None else min(self.best, value, key=scale.loss)
            self._keep_worst(_worst_score(rollout, main_score), scale)

    def _keep_worst(self, new: WorstScore, scale: Scale) -> None:
        """Gives a scenario one place, that of its worst trial. A scenario that lost its place returns when a worse trial comes."""

        def order(each: WorstScore) -> tuple[float, str]:
            return -scale.loss(each.score), each.id

        kept = next((each for each in self.worst if each.scenario == new.scenario), None)
        if kept is None or order(new) < order(kept):
            self.worst = [each for each in self.worst if each is not kept]
            insort(self.worst, new, key=order)
            del self.worst[WORST:]

    def worst_first(self, questions: Mapping[str, str], scale: Scale) -> tuple[WorstScore, ...]:
        """Returns the worst scores, without the best possible value of the scale, or the best measured one if none is known.

        `questions` are those of the scenarios that are known.
        """
        best = self.best if scale.best is None else scale.best
        return tuple(replace(each, question=questions.get(each.scenario, each.question)) for each in self.worst if each.score != best)


def _worst_score(rollout: Rollout, score: str) -> WorstScore:
    return WorstScore(
        id=rollout.key.id,
        scenario=rollout.scenario,
        question=question([*takewhile(lambda message: message.get("role") != "assistant", rollout.messages)]),
        score=float(rollout.scores[score]),
        explanation=rollout.scores[score].explanation,
        expected_tools=tuple(rollout.expected_tools),
        actual_tools=tuple(rollout.tools),
    )


def build_suite(
    suite: Suite,
    variant: str,
    tally: SuiteTally,
    thresholds: Mapping[str, float],
    quarantined: Mapping[str, Mapping[str, int]] | None = None,
    population: Collection[str] = (),
    prices: Prices | None = None,
) -> SuiteResult:
    """What was found of one suite under one variant; `quarantined`: scenario -> its `tests`, and of them `passed`, if any ran.

    `population` are the scores of which a rule asks the population, so that their intervals are of it; `prices` are the backend's.
    """
    counts, bar = quarantined or {}, bar_of(suite.score_names, thresholds, suite.scales)
    passes = _pass_counts(tally, bar)
    questions = {scenario.id: question(scenario.messages) for scenario in suite.scenarios}
    retried = suite.score_names if tally.retried else ()
    scores = {name: _score_summary(tally, name, suite.scale(name), _question(name, population)) for name in suite.score_names}
    return SuiteResult(
        dataset=suite.dataset,
        variant=variant,
        agent=suite.agent_of(variant),
        folder=str(suite.folder),
        scorers=tuple(suite.score_names),
        scored_by={score_name(name): ScoredBy(name, options) for name, options in suite.scorers.items()},
        scales=suite.every_scale,
        thresholds=dict(thresholds),
        gate=suite.gate,
        deterministic=suite.deterministic,
        quarantined=tuple(_quarantined(each, counts.get(each.scenario, {})) for each in suite.quarantine),
        unsupported=suite.unsupported,
        rollouts={status: tally.statuses[status] for status in STATUSES},
        retried=tally.retried,
        retried_scores={name: _retried_summary(tally, name, suite.scale(name), _question(name, population)) for name in retried},
        scores=scores,
        passes=_passes(tally, bar, passes, population),
        efficiency=tally.spending.efficiency(_worth(suite, scores), sum(passed for passed, _ in passes.values()), prices),
        answers=tally.answers.summary(),
        score_errors=dict(tally.score_errors),
        scorer_failures=tally.scorer_failures.summary(),
        drafts=tally.drafts.summary(),
        roles=tally.roles.uses(prices_by_endpoint(suite, prices)),
        worst=tally.worst_first(questions, suite.scale(suite.score_names[0])),
        scenarios=_scenarios(tally, suite.score_names, suite.scale(suite.score_names[0])),
        triage=tally.mistakes.triage(),
        tasks=tally.tasks.summary(),
        sandboxes=tuple(sorted(tally.sandboxes)),
        errors=tuple(tally.errors),
    )


def prices_by_endpoint(suite: Suite, backend: Prices | None) -> dict[str, Prices]:
    """Endpoint -> its prices; that of the backend under test is an empty text."""
    elsewhere = (role for role in suite.roles.values() if role.get("url") and role.get("prices"))
    roles = {str(role["url"]).rstrip("/"): Prices(**role["prices"]) for role in elsewhere}
    return {**roles, **({"": backend} if backend else {})}


def _quarantined(entry: Quarantined, counts: Mapping[str, int]) -> QuarantineResult:
    facts = entry.scenario, entry.owner, entry.reason, entry.expires.isoformat()
    return QuarantineResult(*facts, counts.get("tests", 0), counts.get("passed", 0))


def _question(score: str, population: Collection[str]) -> str:
    return POPULATION if score in population else SUITE


def _score_summary(tally: SuiteTally, name: str, scale: Scale, of: str) -> Means:
    """Returns two means: over all measured rollouts, an agent's error counting as the worst value, and over the evaluable ones.

    If the scale has no worst value, both means are over the evaluable ones.
    """
    evaluable = tally.scores.get(name, {})
    everything = {scenario: list(values) for scenario, values in evaluable.items()}
    for scenario, count in tally.agent_errors.items():
        if scale.worst is not None:
            everything.setdefault(scenario, []).extend([scale.worst] * count)
    return Means(*(_mean(values, tally.clusters, scale.limits, of) for values in (everything, evaluable)))


def _retried_summary(tally: SuiteTally, name: str, scale: Scale, of: str) -> RetriedMeans:
    """Means of rollouts that were tried again beside those of the others: where they differ, retries have changed what is measured."""
    return RetriedMeans(*(_mean(tally.retried_scores[name][again], tally.clusters, scale.limits, of) for again in (True, False)))


def _mean(
    values: Mapping[str, Sequence[float]], clusters: Mapping[str, str | None], limits: tuple[float, float] | None, of: str
) -> Mean | None:
    """A mean with its interval; None of nothing."""
    return Mean(*_facts(scenarios_interval(values, clusters, limits=limits, of=of), of)) if values else None


def _facts(interval: Interval, of: str) -> tuple[float | None, float | None, float | None, str, int, int, str]:
    """The fields of a `Mean` in their order."""
    return interval.mean, interval.low, interval.high, of, interval.n, interval.clusters, interval.method


def bar_of(scores: Sequence[str], thresholds: Mapping[str, float], scales: Mapping[str, Scale]) -> Bar | None:
    """What a rollout has to reach to pass: the floor of the main score, the first; None where it has none."""
    main = scores[0]
    return Bar(main, thresholds[main], scale_in(scales, main).falling) if main in thresholds else None


def _worth(suite: Suite, scores: Mapping[str, Means]) -> float | None:
    """The main score's mean over all; None if there is none, or less of it is better: nothing is gained per token by that."""
    main = suite.score_names[0]
    return mean.value if not suite.scale(main).falling and (mean := scores[main].mean) else None


def _pass_counts(tally: SuiteTally, bar: Bar | None) -> Mapping[str, tuple[int, int]]:
    """Scenario -> (trials that passed, measured trials); none where nobody said what passes."""
    return pass_counts(tally.scores.get(bar.score, {}), tally.agent_errors, bar) if bar else {}


def _passes(tally: SuiteTally, bar: Bar | None, counts: Mapping[str, tuple[int, int]], population: Collection[str]) -> Passes | None:
    """Which share of each scenario's trials passes, and of the scenarios; None where nobody said what passes, or nothing was measured."""
    if bar is None or not counts:
        return None
    most = max(trials for _, trials in counts.values())

    def rates(*, every: bool) -> tuple[PassMean, ...]:
        asked = [(PassRate(every, k), k) for k in range(1, min(most, MOST_K) + 1)]
        questions = [(rate, k, _question(rate.name, population)) for rate, k in asked]
        return tuple(PassMean(*_facts(rate.interval(counts, tally.clusters, of=of), of), k=k) for rate, k, of in questions)

    repeated = {scenario: each for scenario, each in counts.items() if each[1] > 1}
    failing = sorted((passed / trials, scenario) for scenario, (passed, trials) in repeated.items() if passed < trials)
    return Passes(
        score=bar.score,
        floor=bar.floor,
        pass_at=rates(every=False),
        pass_all=rates(every=True),
        always=len(repeated) - len(failing),
        scenarios=tuple(_scenario_passes(scenario, *repeated[scenario]) for _, scenario in failing),
    )


def _scenarios(tally: SuiteTally, scores: Sequence[str], scale: Scale) -> tuple[ScenarioScores, ...]:
    """Every scenario that was measured, the worst first score first by its scale, equal ones by id; one that has none comes last."""
    values = {scenario: [tally.scores[score].get(scenario, []) for score in scores] for scenario in tally.clusters}
    found = [
        ScenarioScores(scenario, {score: fmean(each) if each else None for score, each in zip(scores, of_scores, strict=True)})
        for scenario, of_scores in values.items()
    ]
    main = scores[0]
    return tuple(sorted(found, key=lambda each: (each.scores[main] is None, -scale.loss(each.scores[main] or 0.0), each.scenario)))


def _scenario_passes(scenario: str, passed: int, trials: int) -> ScenarioPasses:
    return ScenarioPasses(scenario, passed, trials, *binomial_interval(passed, trials))


def environment(root: Path) -> Environment:
    """What this run ran on, as far as it can be known without asking the network."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=os.cpu_count(),
        packages={name: version for name in PACKAGES if (version := _version(name))},
        git=_git(root),
    )


def unknown_environment(python: str = "unknown") -> Environment:
    """The same, where nothing can be found out."""
    return Environment(python, "unknown", None, {}, None)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path) -> Git | None:
    def ask(*words: str) -> bytes | None:
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    dirty = bool(ask("status", "--porcelain", "--untracked-files=no"))
    changes = ask("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color") if dirty else None
    return Git(commit.decode(), dirty, None if changes is None else hashlib.sha256(changes).hexdigest()[:16])


def write_run(run: Run, directory: Path) -> Path:
    """Writes run.json; a reader never sees half of it."""
    return write_whole(directory / FILE, json.dumps(plain(run), indent=2, ensure_ascii=False) + "\n", errors="backslashreplace")


def redacted(run: Run, redact: Callable[[str], str]) -> Run:
    """The run as it may be written: a command, or the end of a log, may hold secrets."""
    return read(Run, json.loads(redact(json.dumps(plain(run)))))


def read_run(directory: Path) -> Run:
    """The run of a directory; raises ConfigError for a run.json that cannot be read, with what is wrong and where."""
    path = directory / FILE
    data = read_json_file(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ConfigError(_of_another_schema(path, data if isinstance(data, dict) else {}))
    try:
        return read(Run, data)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _of_another_schema(path: Path, data: Json) -> str:
    """What to do about a run of another version."""
    schema, command = data.get("schema"), data.get("command")
    if not isinstance(schema, str) or not schema.startswith(SCHEMA.partition("/")[0]):
        return f"{path} is no run of schema {SCHEMA}"
    again = shlex.join(map(str, command)) if isinstance(command, list) and command else "pytest"
    return f"{path} is of schema {schema}, and this version reads {SCHEMA}; `{again}` makes it again"


def find_run(name: str, reports: Path) -> Path:
    """The directory of a finished run: its path, that of its run.json, or its name under the reports; raises ConfigError.

    Of several that the user has given one name the newest is meant.
    """
    return directory_with(FILE, name, reports, "it is no run directory, or its session did not end")
