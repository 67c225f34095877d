"""What a gate knows of a run: scores, derived timings and hashes of each rollout, and a few facts about all of it. No texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.goodput import EXPECTED, longest_gap_ns
from pytest_agentbench.records import Json, LLMCall, Rollout

SCHEMA = "agentbench-baseline/1"  # docs/gates.md describes it


class CallTimes(NamedTuple):
    """One LLM call; milliseconds, None for what it does not have. A failed call has no times."""

    ttft: float | None
    tpot: float | None
    e2e: float | None
    itl: float | None  # its longest gap
    output_tokens: int
    failed: bool

    def good(self, slo: Mapping[str, float]) -> bool | None:
        """Whether it met all objectives (milliseconds); None where that cannot be known."""
        if self.failed:
            return False
        values = {name: getattr(self, name) for name in slo}
        if any(value is not None and value > slo[name] for name, value in values.items()):
            return False
        return None if any(values[name] is None for name in EXPECTED if name in values) else True


@dataclass(frozen=True)
class Trial:
    """One rollout, as far as a gate is interested in it."""

    suite: str
    group: str  # the suite, or suite-variant
    scenario: str
    trial: int
    status: str
    content: Json = field(default_factory=dict)  # hashes of what it depends on: scenario, agent, backend, and of each score
    cluster: str | None = None
    attempts: int = 1
    scores: Mapping[str, float] = field(default_factory=dict)
    unscored: tuple[str, ...] = ()  # scores that are missing because their scorer failed
    began_at: float = 0.0  # seconds since 1970, of the last attempt: latencies are compared in the order of time
    duration_ms: float = 0.0  # of the last attempt
    calls: tuple[CallTimes, ...] = ()  # of all attempts

    def to_dict(self) -> Json:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        calls = tuple(CallTimes(*call) for call in data["calls"])
        return cls(**{**data, "calls": calls, "unscored": tuple(data["unscored"])})


@dataclass(frozen=True)
class Facts:
    """What is known of a run as a whole."""

    run: str  # its id
    planned: int = 0  # rollouts
    lost: int = 0  # of them, those that never ended
    scenarios: Mapping[str, int] = field(default_factory=dict)  # group -> how many its data set has
    stopwatch: str | None = None  # its verdict on the timings
    unusable: Sequence[str] = ()  # what it says is not usable: `ttft.p99`, or the objective `goodput.itl`
    cache: str = "carry"  # how the prefix cache was made ready
    rollouts_per_hour: float | None = None
    output_tokens_per_s: float | None = None
    prefix_cache_hit_ratio: float | None = None
    slo: Mapping[str, float] = field(default_factory=dict)  # objective -> milliseconds
    commit: str | None = None  # of the repository
    finished_at: str = ""  # ISO 8601
    quarantined: Mapping[str, Sequence[str]] = field(default_factory=dict)  # group -> scenarios that rules leave out
    most_rounds: int = 0  # of trials, where they were added until the verdict stood; 0: their number was fixed
    rounds: int = 0  # of them, those after which the rules were last looked at

    @classmethod
    def of(cls, run: Json) -> Facts:
        """Of what run.json holds."""
        performance = run["performance"]
        return cls(
            run=run["id"],
            planned=run["plan"]["rollouts"],
            lost=run["plan"]["not_run"],
            scenarios={name: suite["dataset"]["size"] for name, suite in run["suites"].items()},
            stopwatch=run["stopwatch"]["verdict"],
            unusable=tuple(run["stopwatch"].get("unusable", ())),
            cache=run["settings"].get("cache", "carry"),
            slo=run["settings"]["slo"],
            commit=(run["environment"]["git"] or {}).get("commit"),
            finished_at=run["finished_at"],
            quarantined={
                name: ids for name, suite in run["suites"].items() if (ids := [each["scenario"] for each in suite.get("quarantined", ())])
            },
            most_rounds=rounds["most"] if (rounds := run.get("rounds")) else 0,  # runs of older versions have none
            rounds=rounds["ran"] if rounds else 0,
            **{name: performance[name] for name in ("rollouts_per_hour", "output_tokens_per_s", "prefix_cache_hit_ratio")},
        )


@dataclass(frozen=True)
class Evidence:
    """A run, as a gate sees it: measured just now, read from a run directory, or from a baseline file."""

    facts: Facts
    groups: Mapping[str, Sequence[Trial]]  # suite, or suite-variant -> its rollouts

    @classmethod
    def of(cls, facts: Facts, trials: Iterable[Trial]) -> Evidence:
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(trial.group, []).append(trial)
        return cls(facts, groups)

    def up_to(self, rounds: int) -> Evidence:
        """This without the trials after so many rounds."""
        kept = {group: [trial for trial in trials if trial.trial <= rounds] for group, trials in self.groups.items()}
        return Evidence(self.facts, kept)

    def hashes(self, group: str, part: str) -> set[str]:
        """The different hashes of an agent or a backend that the rollouts of a group have; known ones only."""
        return {hash for trial in self.groups.get(group, ()) if (hash := trial.content.get(part))}

    def scored_by(self, group: str, score: str) -> set[str]:
        """The different hashes of how a score of a group's rollouts came about; known ones only."""
        found = (trial.content.get("scorers") for trial in self.groups.get(group, ()))
        return {hash for each in found if isinstance(each, Mapping) and (hash := each.get(score))}  # older versions have one hash of all

    def without(self, group: str, scenarios: Collection[str]) -> Evidence:
        """This without some scenarios of a group, as if its data set did not have them."""
        kept = [trial for trial in self.groups.get(group, ()) if trial.scenario not in scenarios]
        size = max(0, self.facts.scenarios.get(group, 0) - len(scenarios))
        return Evidence(replace(self.facts, scenarios={**self.facts.scenarios, group: size}), {**self.groups, group: kept})

    def to_lines(self, suite: str, replaces: str | None = None, reason: str = "") -> Iterable[Json]:
        """A baseline file of one suite with all its variants: a header, then a line a rollout.

        `replaces` is the run that was the baseline before, `reason` why a lower one takes its place; both are for people.
        """
        yield {"schema": SCHEMA, "suite": suite, "replaces": replaces, "reason": reason, **asdict(self.facts)}
        yield from (trial.to_dict() for trials in self.groups.values() for trial in trials if trial.suite == suite)

    @classmethod
    def from_lines(cls, lines: Iterable[Json]) -> Evidence:
        """Raises ValueError, TypeError or KeyError for what is no baseline file."""
        every = iter(lines)
        header = dict(next(every, {}))
        if header.pop("schema", None) != SCHEMA or not header.pop("suite", None):
            raise ValueError(f"the first line is no header of schema {SCHEMA}")
        del header["replaces"], header["reason"]
        return cls.of(Facts(**{**header, "unusable": tuple(header.get("unusable", ()))}), map(Trial.from_dict, every))


def trial_of(rollout: Rollout) -> Trial:
    """A rollout without its texts."""
    return Trial(
        suite=rollout.suite,
        group=rollout.key.group,
        scenario=rollout.scenario,
        trial=rollout.trial,
        status=rollout.status,
        content=rollout.content,
        cluster=rollout.cluster,
        attempts=rollout.attempt,
        scores={name: float(score) for name, score in rollout.scores.items()},
        unscored=tuple(rollout.score_errors),
        began_at=rollout.started_at,
        duration_ms=rollout.duration_s * 1e3,
        calls=tuple(map(call_times, rollout.all_calls)),
    )


def call_times(call: LLMCall) -> CallTimes:
    """The derived timings of a call."""
    return CallTimes(
        ttft=_milliseconds(timings.ttft_ns(call)),
        tpot=_milliseconds(timings.tpot_ns(call)),
        e2e=_milliseconds(timings.e2e_ns(call)),
        itl=_milliseconds(longest_gap_ns(call)),
        output_tokens=timings.output_tokens(call),
        failed=call.error_kind is not None,
    )


def _milliseconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6
