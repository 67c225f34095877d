"""run.json: the Run, with everything that one session measured, or several that worked on one run; how it is written, read, and found by
its name.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.telemetry.engine_stats import ServingSummary
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.codec import plain, read
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.metrics.performance import PerformanceSummary
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.records import OPEN, Json, arm_of
from pytest_agentbench.runs.directory import directory_with
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.provenance import Git, ModelUse, RunIdentity
from pytest_agentbench.runs.results import ArmResult, ArmsCompared, Cache, EarlierRuns, GateResult, RoundsResult, SuiteResult

SCHEMA = "agentbench-run/7"  # docs/run-json.md describes it


@dataclass(frozen=True)
class SessionShare:
    """What one of the [sessions](resume.md) that worked on a run had to do with it."""

    session: int  # counted from 1
    started_at: str
    concurrency: int  # rollouts in flight at most
    rollouts: int  # of the run's rollouts, those that it ran


@dataclass(frozen=True)
class OwnMean:
    """A mean that the tool gives whose results were imported, beside ours."""

    suite: str  # suite, or `suite-variant`
    score: str
    theirs: float  # as the tool says
    ours: float | None  # of this run; null when nothing was measured
    why: str  # why they differ; empty where they do not


@dataclass(frozen=True)
class Imported:
    """Where the results of [another tool](import.md) are from."""

    tool: str  # that measured
    path: str  # of its results
    at: str  # when they were read, ISO 8601
    stopwatch: str  # how the tool takes its times
    notes: tuple[str, ...]  # sentences on what its results do not tell
    facts: Json  # numbers that only this tool tells
    means: tuple[OwnMean, ...]


@dataclass(frozen=True)
class Rescored:
    """What the run is that was [scored again](scorers.md#score-a-run-again)."""

    run: str  # its `id`
    at: str  # when, ISO 8601


@dataclass(frozen=True)
class Environment:
    """What a run ran on."""

    python: str  # version
    platform: str
    cpus: int | None
    packages: Mapping[str, str]  # package -> version
    git: Git | None  # of pytest's rootdir; null when it is no git repository
    more: Json = field(default_factory=dict, metadata=OPEN)  # added by the hook `pytest_agentbench_update_environment`


@dataclass(frozen=True)
class WarmUp:
    """Requests that were made before anything was measured."""

    requests: int
    seconds: float


@dataclass(frozen=True)
class Boot:
    """How a stack came up."""

    boot_s: float  # seconds until it answered as it should
    waited_for_gpus_s: float  # of them, seconds in which others had its GPUs
    services_s: float  # of them, seconds until all services were up
    proof_s: float  # of them, seconds in which was proven that it answers
    warm_up: WarmUp
    more: Json = field(default_factory=dict, metadata=OPEN)  # what was proven, which GPUs each service has, versions, images, weights


@dataclass(frozen=True)
class BackendUse:
    """The backend as its YAML describes it, without thresholds, and what it came to."""

    name: str
    note: str
    kind: str  # `embedded`, `url` or `stack`; `ab`: [arms](ab.md), each described under `arms`; `imported`: that of another tool
    served_model: str | None  # that calls asked for, and the one that answers name: `big (answered by small)`; null: it did not start
    failure: str  # why it could not be used any more; empty when all was well
    models: tuple[ModelUse, ...] = ()  # of the agents' calls, by name
    warnings: tuple[str, ...] = ()  # sentences, one for each model that a suite asks for and that the backend does not list
    reused: bool | None = None  # of a stack: it was kept from an earlier session, so its caches were warm
    passed_over: str | None = None  # of a stack: why a kept one of the same YAML was not used; empty where none was there
    reaped: str | None = None  # of a stack: what a daemon that was killed had left, and was ended before the boot; empty: nothing
    boot: Boot | None = None  # of a stack
    restarts: Mapping[str, int] | None = None  # of a stack: service -> how often it died and was started again in the middle of the run
    more: Json = field(default_factory=dict, metadata=OPEN)  # the other [keys of backend.yaml](backends.md) that have a value

    def described(self, variant: str) -> Json:
        """What the YAML says of the backend that served a variant: in a session with several of them, the one of its arm."""
        return self.more.get("arms", {}).get(arm_of(variant), {}) if self.kind == "ab" else {"kind": self.kind, **self.more}


@dataclass(frozen=True)
class Interruptions:
    """Parts of this session that [died and were started again](resume.md#what-dies-is-started-again), or did not answer for a while."""

    deaths: Mapping[str, int] = field(default_factory=dict)  # part (`pool`, `tap`, `engine`, a service, `server`) -> how often
    attempts: int = 0  # that were under way then, and were run again; they cost their rollouts no retry


@dataclass(frozen=True)
class LabelCounts:
    """Rollouts that the backend was [told of](backends.md#labels-a-stack-that-knows-rollouts)."""

    labelled: int  # attempts whose calls got a label; each has an id of its own
    # of them, those that the backend has seen, where it tells; elsewhere those with a call that was answered; what a pool was told as
    # it died is not counted
    announced: int
    released: int  # releases that the backend took
    failed: int  # releases that failed when their rollout ended, some of which may have worked at the session's end
    bypassed: int  # releases that something answered that knows of no rollouts
    left: int  # rollouts that were not released when the session ended


@dataclass(frozen=True)
class Plan:
    """What the selected tests wanted, and what became of it."""

    rollouts: int  # that they wanted
    finished: int  # of them, those that ended, whatever the status
    not_run: int  # of them, those that never ended


@dataclass(frozen=True)
class ProcessCost:
    """What a process of the session cost."""

    cpu_s: float  # CPU seconds
    peak_mib: float  # peak memory, MiB


@dataclass(frozen=True)
class Failure:
    """A test that failed, or that could not judge."""

    id: str  # as pytest has it
    file: str  # absolute path
    line: int  # of the test, counted from 1
    outcome: str  # `failed` or `error`
    message: str  # at most 1,000 characters
    properties: Mapping[str, Any]  # those of [JUnit](running.md#what-a-failing-test-shows)


@dataclass(frozen=True)
class OutcomeCounts:
    """How the tests of this session ended, not of those before it that worked on the run."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0  # expected failures among them
    failures: tuple[Failure, ...] = ()  # the first 200 that failed or are errors


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """What is known of a run beside its rollouts: by the session that ran them, or by whoever reads them again."""

    schema: str = SCHEMA
    id: str  # name of the run directory
    name: str = ""  # that the user [gave it](running.md#a-name-for-a-run), which `id` ends in; empty without one
    started_at: str  # of the first session, ISO 8601 with the local offset, whole seconds
    finished_at: str  # of the last session
    command: tuple[str, ...]  # the command line
    sessions: tuple[SessionShare, ...] = ()  # that [worked on this run](resume.md), this one last
    repeated: int = 0  # rollouts that failed in a session and ran again in a later one
    resume: str | None = None  # the command that goes on with this run; null when nothing is left to do
    damaged: tuple[str, ...] = ()  # sentences on what of the journal could not be read
    losses: tuple[str, ...] = ()  # sentences on what [failed at the end](running.md#what-fails-at-the-end), each with its cause
    # the [word for the exit status](ci.md#exit-statuses): `PASS`, `FAIL`, `NOT MEASURED`, `INCONCLUSIVE`, `SKIPPED`, `INTERRUPTED`, ...;
    # `NO GATE` if [no rule was applied](gates.md#what-counts-as-a-rule); `IMPORTED` for [results of other tools](import.md)
    verdict: str = ""
    # pytest's, failed tests and the [gate](gates.md#exit-statuses) in it; null of an imported run. Of one that was scored
    # again, what a session would have had for its gate
    exit_status: int | None = None
    imported: Imported | None = None  # null of a run of our own
    rescored: Rescored | None = None  # null of a run that was not scored again
    settings: RunOptions  # the options in force
    environment: Environment
    identity: RunIdentity | None = None  # [what the numbers may be owed to](compare.md#the-identity-of-a-run); null of an imported run
    backend: BackendUse
    rounds: RoundsResult | None = None  # of trials; null where their number was fixed
    earlier: EarlierRuns | None = None  # null of an imported run
    interruptions: Interruptions = field(default_factory=Interruptions)
    labels: LabelCounts | None = None  # null when it was told of none
    plan: Plan
    stopwatch: Stopwatch
    serving: ServingSummary | None = None  # [what the server says of itself](metrics.md#what-the-server-says); null where it says nothing
    processes: Mapping[str, ProcessCost] = field(default_factory=dict)  # `pool`, `tap`, `engine` -> what it cost
    tests: OutcomeCounts = field(default_factory=OutcomeCounts)
    cache: Cache | None = None  # null of an imported run
    ab: ArmsCompared | None = None  # null without [arms](ab.md)
    gate: GateResult | None = None  # null without a [gate](gates.md), and when nothing ran that it is about

    def facts(self) -> dict[str, Any]:
        """These fields by their names."""
        return {each.name: getattr(self, each.name) for each in fields(SessionFacts)}


@dataclass(frozen=True, kw_only=True)
class Run(SessionFacts):
    """What is known of a run, and what its rollouts came to."""

    suites: Mapping[str, SuiteResult]  # suite, or `suite-variant`, -> what was found
    performance: PerformanceSummary  # of all rollouts of the run; [what each number is](metrics.md#serving-metrics)
    # currency -> what all suites [cost](metrics.md#efficiency) together; null where that of one is unknown; empty without prices
    costs: Mapping[str, float | None]

    @property
    def unknown_suites(self) -> tuple[str, ...]:
        """Those with thresholds, none of which is known to hold, for nothing was measured."""
        return tuple(name for name, suite in self.suites.items() if suite.is_unknown)

    def arm_of(self, suite: str) -> ArmResult | None:
        """The arm under which a suite ran, by its name in `suites`; None without arms."""
        variant = self.suites[suite].variant if suite in self.suites else ""
        return next((arm for arm in (self.ab.arms if self.ab else ()) if arm.name == arm_of(variant)), None)

    def concurrency_of(self, suite: str) -> int | None:
        """Rollouts in flight, as they were asked for where the suite ran; None where nobody knows."""
        arm = self.arm_of(suite)
        return self.settings.concurrency if arm is None or arm.concurrency is None else arm.concurrency

    def model_of(self, suite: str) -> str | None:
        """The model that calls of the suite were answered by, as `backend.served_model` says it."""
        arm = self.arm_of(suite)
        return arm.model if arm else self.backend.served_model


FILE = "run.json"


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
