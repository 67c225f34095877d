"""run.json: the record Run with the results of a run, which may have several sessions. Writes, reads and finds the file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from pytest_agentbench.backends.telemetry.engine_stats import ServingSummary
from pytest_agentbench.backends.telemetry.engine_use import EngineUse
from pytest_agentbench.backends.telemetry.kv_cache import KvCacheUse
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.codec import plain, read
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.metrics.call_hints import HintUse
from pytest_agentbench.metrics.performance import PerformanceSummary
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.records import OPEN, Json, arm_of
from pytest_agentbench.runs.directory import directory_with
from pytest_agentbench.runs.nodes import LaunchRecord, NodeRecord
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.provenance import Git, ModelUse, RunIdentity
from pytest_agentbench.runs.results import ArmResult, ArmsCompared, Cache, EarlierRuns, GateResult, RoundsResult, SuiteResult

Redacted = TypeVar("Redacted")

SCHEMA = "agentbench-run/8"  # docs/reference/run-json.md describes it


@dataclass(frozen=True)
class SessionShare:
    """A [session](resume.md) of a run, with the number of rollouts that it ran."""

    session: int  # number of the session, counted from 1
    started_at: str  # start of the session, ISO 8601
    concurrency: int  # maximum number of rollouts in flight
    rollouts: int  # number of rollouts of the run that this session ran


@dataclass(frozen=True)
class OwnMean:
    """A mean that another tool reports, and the mean of the imported run."""

    suite: str  # suite, or `suite-variant`
    score: str  # name of the score
    theirs: float  # mean that the tool reports
    ours: float | None  # mean of the imported run; null if no rollout was measured
    why: str  # why the means differ; empty if they are equal


@dataclass(frozen=True)
class Imported:
    """The source of [imported results](import.md) of another tool."""

    tool: str  # name of the tool
    path: str  # path of the imported results
    at: str  # time of the import, ISO 8601
    stopwatch: str  # how the tool measures times
    notes: tuple[str, ...]  # sentences on data that the results do not contain
    facts: Json  # values that only this tool reports
    means: tuple[OwnMean, ...]  # means that the tool reports


@dataclass(frozen=True)
class Rescored:
    """The run that was [scored again](scorers.md#score-a-run-again) to make this one."""

    run: str  # `id` of that run
    at: str  # time of the scoring, ISO 8601


@dataclass(frozen=True)
class Environment:
    """The machine and the software of a run."""

    python: str  # version of Python
    platform: str  # operating system and architecture
    cpus: int | None  # number of CPU cores; null if unknown
    packages: Mapping[str, str]  # package -> version
    git: Git | None  # git state of pytest's rootdir; null if it is not in a git repository
    more: Json = field(default_factory=dict, metadata=OPEN)  # values that the hook `pytest_agentbench_update_environment` added


@dataclass(frozen=True)
class WarmUp:
    """The requests that warmed up a stack before measuring began."""

    requests: int  # number of requests
    seconds: float  # duration of the warm-up


@dataclass(frozen=True)
class Boot:
    """The start of a stack."""

    boot_s: float  # seconds until all readiness checks had passed
    waited_for_gpus_s: float  # seconds of `boot_s` that it waited for GPUs in use
    services_s: float  # seconds of `boot_s` until all services were running
    proof_s: float  # seconds of `boot_s` for the readiness checks
    warm_up: WarmUp  # warm-up requests
    queue_s: float = 0.0  # seconds of `boot_s` during which a service waited for machines of a cluster; 0 if none needed one
    # results of the readiness checks, GPUs of each service, jobs and hosts of services on other machines, versions, images and weights
    more: Json = field(default_factory=dict, metadata=OPEN)


@dataclass(frozen=True)
class Playback:
    """The use of a [recording](recordings.md) in place of a backend."""

    run: str  # id of the recorded run
    calls: int  # recorded calls with a request and a reply
    by_content: int  # requests that were found by their content
    by_place: int  # requests that were found by their place in the rollout, because texts of the recorded request were redacted
    missed: int  # requests that were not recorded
    played_calls: int  # recorded calls of the rollouts that asked for something
    unasked: int  # those of `played_calls` that were not asked for


@dataclass(frozen=True)
class BackendUse:
    """The backend: its YAML without thresholds, and facts about its use in the run."""

    name: str  # name of the backend
    note: str  # note in its YAML; empty without one
    # `embedded`, `url`, `stack` or `recorded`; `ab` for [arms](ab.md), which are described under `arms`; `imported` for imported results
    kind: str
    served_model: str | None  # requested model, with the answering one if it differs: `big (answered by small)`; null if it did not start
    failure: str  # why it could not be used any more; empty if it did not fail
    models: tuple[ModelUse, ...] = ()  # models of the agents' calls, by name
    warnings: tuple[str, ...] = ()  # sentences, one for each model that a suite requests and that the backend does not list
    reused: bool | None = None  # whether a stack was kept from an earlier session, so its caches were warm; null for other backends
    passed_over: str | None = None  # why a kept stack with the same YAML was not used; empty if there was none; null for other backends
    reaped: str | None = None  # leftovers of a killed stack daemon that were cleaned up before the start; empty if none; null if no stack
    boot: Boot | None = None  # start of a stack; null for other backends
    restarts: Mapping[str, int] | None = None  # service of a stack -> restarts after it died during the run; null for other backends
    recording: Playback | None = None  # use of a recording; null for other backends, and if its server has died
    more: Json = field(default_factory=dict, metadata=OPEN)  # the other [keys of backend.yaml](choose.md) that have a value

    @property
    def is_recorded(self) -> bool:
        """Whether answers came from a recording, so that nothing new was measured. In a session with arms, whether those of any arm did."""
        return "recorded" in (self.kind, *(arm.get("kind") for arm in self.more.get("arms", {}).values()))

    def described(self, variant: str) -> Json:
        """Returns the YAML of the backend that served a variant. In a session with arms that is the backend of the arm."""
        return self.more.get("arms", {}).get(arm_of(variant), {}) if self.kind == "ab" else {"kind": self.kind, **self.more}


@dataclass(frozen=True)
class Interruptions:
    """The processes of this session that [died and were restarted](resume.md#what-dies-is-started-again), or did not answer for a while."""

    deaths: Mapping[str, int] = field(default_factory=dict)  # process (`pool`, `tap`, `engine`, a service, `server`) -> number of times
    attempts: int = 0  # attempts that were in flight at these times and were repeated; they do not count as retries


@dataclass(frozen=True)
class LabelCounts:
    """Counts of attempts whose calls named their rollout to the backend, in [labels](labels.md)."""

    labelled: int  # attempts whose calls got a label; each label has its own id
    # labelled attempts that the backend has seen, or that had an answered call if it does not report them; reports that arrived when a
    # pool died are not counted
    announced: int
    released: int  # releases that the backend accepted
    failed: int  # releases that failed when their rollout ended; some may have succeeded at the end of the session
    bypassed: int  # releases that were answered like LLM calls, by a server that does not know rollouts
    left: int  # attempts that were not released when the session ended


@dataclass(frozen=True)
class Plan:
    """The rollouts that the selected tests need."""

    rollouts: int  # number of planned rollouts
    finished: int  # planned rollouts that ended, with any status
    not_run: int  # planned rollouts that did not end


@dataclass(frozen=True)
class ProcessCost:
    """The resources that a process of the session used."""

    cpu_s: float  # CPU time, seconds
    peak_mib: float  # peak memory, MiB


@dataclass(frozen=True)
class Failure:
    """A test that failed, or that had an error."""

    id: str  # pytest's node id
    file: str  # absolute path of the file
    line: int  # line of the test, counted from 1
    outcome: str  # `failed` or `error`
    message: str  # message of the failure, at most 1,000 characters
    properties: Mapping[str, Any]  # properties, as in [JUnit](running.md#what-a-failing-test-shows)
    rollout: str = ""  # rollout of the test, such as `banking[banking-017]`; empty if the test reads none


@dataclass(frozen=True)
class OutcomeCounts:
    """The outcomes of the tests of the last session."""

    passed: int = 0  # tests that passed
    failed: int = 0  # tests that failed
    errors: int = 0  # tests with an error
    skipped: int = 0  # skipped tests, and tests that failed as expected
    failures: tuple[Failure, ...] = ()  # tests that failed or had an error, the first 200


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """The fields of a run that `build_run` does not compute from its rollouts. A session, an import or a new scoring provides them."""

    schema: str = SCHEMA  # name and version of the schema
    id: str  # name of the run directory
    name: str = ""  # [name of the run](running.md#a-name-for-a-run), the end of `id`; empty if the user gave none
    started_at: str  # start of the first session, ISO 8601 with the local offset, whole seconds
    finished_at: str  # end of the last session, in the same format
    command: tuple[str, ...]  # the command line
    sessions: tuple[SessionShare, ...] = ()  # [sessions](resume.md) of the run, the last one last
    nodes: tuple[NodeRecord, ...] = ()  # [node workers](nodes.md) of the sessions; empty if all rollouts ran on the session's machine
    launches: tuple[LaunchRecord, ...] = ()  # how [launchers](scale.md) started node workers, one for each session that used a launcher
    repeated: int = 0  # number of rollouts that failed in a session and ran again in a later one
    resume: str | None = None  # command that resumes the run; null if nothing is left to run
    damaged: tuple[str, ...] = ()  # sentences on parts of the journal that could not be read
    losses: tuple[str, ...] = ()  # sentences on [failures at the end of the session](running.md#what-fails-at-the-end), each with its cause
    # [word for the exit status](exit-statuses.md): `PASS`, `FAIL`, `NOT MEASURED`, `INCONCLUSIVE`, `SKIPPED`, `INTERRUPTED`, ...;
    # `NO GATE` if [no rule was applied](gates.md#what-counts-as-a-rule); `IMPORTED` for [results of other tools](import.md)
    verdict: str = ""
    # exit status of pytest, which depends on failed tests and the [gate](gates.md#exit-statuses); for a run that was scored again, the
    # status that its gate would have caused; null for an imported run
    exit_status: int | None = None
    imported: Imported | None = None  # source of imported results; null for other runs
    rescored: Rescored | None = None  # run that was scored again; null for other runs
    settings: RunOptions  # options in force
    environment: Environment  # machine and software
    identity: RunIdentity | None = None  # [identity of the run](compare.md#the-identity-of-a-run); null for an imported run
    backend: BackendUse  # backend under test
    rounds: RoundsResult | None = None  # rounds of trials; null if the number of trials was fixed
    earlier: EarlierRuns | None = None  # earlier runs of the same setup; null for an imported run
    interruptions: Interruptions = field(default_factory=Interruptions)  # processes that died during the session
    labels: LabelCounts | None = None  # rollouts that were announced to the backend; null if none were
    plan: Plan  # planned rollouts
    stopwatch: Stopwatch  # timing quality
    serving: ServingSummary | None = None  # [metrics of the server](metrics.md#what-the-server-says); null if it reports none
    engines: tuple[EngineUse, ...] = ()  # [calls of each engine](metrics.md#calls-of-each-engine), one for each arm with calls
    kv_cache: tuple[KvCacheUse, ...] = ()  # [KV cache events](metrics.md#kv-cache-events) of each engine; empty if none publishes them
    hints: tuple[HintUse, ...] = ()  # [how right hints were](hints.md#how-right-hints-were), for each arm and role with hints
    processes: Mapping[str, ProcessCost] = field(default_factory=dict)  # process (`pool`, `tap`, `engine`) -> resources that it used
    tests: OutcomeCounts = field(default_factory=OutcomeCounts)  # outcomes of the tests
    cache: Cache | None = None  # preparation of the prefix cache; null for an imported run
    ab: ArmsCompared | None = None  # comparison of [arms](ab.md); null without arms
    gate: GateResult | None = None  # verdict of the [gate](gates.md); null without a gate, and if none of its suites ran

    def facts(self) -> dict[str, Any]:
        """Returns name -> value for the fields of SessionFacts, without those of a subclass."""
        return {each.name: getattr(self, each.name) for each in fields(SessionFacts)}


@dataclass(frozen=True, kw_only=True)
class Run(SessionFacts):
    """The facts and results of a run."""

    suites: Mapping[str, SuiteResult]  # suite, or `suite-variant`, -> its results
    performance: PerformanceSummary  # [serving metrics](metrics.md#serving-metrics) of all rollouts
    # currency -> total [cost](metrics.md#efficiency) of all suites; null if the cost of one suite is unknown; empty without prices
    costs: Mapping[str, float | None]

    @property
    def unknown_suites(self) -> tuple[str, ...]:
        """The suites with thresholds that could not be checked, because no rollout was measured."""
        return tuple(name for name, suite in self.suites.items() if suite.is_unknown)

    def arm_of(self, suite: str) -> ArmResult | None:
        """Returns the arm of a suite, by its name in `suites`. None without arms."""
        variant = self.suites[suite].variant if suite in self.suites else ""
        return next((arm for arm in (self.ab.arms if self.ab else ()) if arm.name == arm_of(variant)), None)

    def concurrency_of(self, suite: str) -> int | None:
        """Returns the concurrency option that applied to a suite: that of its arm, or of the session. None if unknown."""
        arm = self.arm_of(suite)
        return self.settings.concurrency if arm is None or arm.concurrency is None else arm.concurrency

    def model_of(self, suite: str) -> str | None:
        """Returns the model of a suite, for example `big`, or `big (answered by small)` if another model answered. None if unknown."""
        arm = self.arm_of(suite)
        return arm.model if arm else self.backend.served_model


FILE = "run.json"


def write_run(run: Run, directory: Path) -> Path:
    """Writes run.json atomically."""
    return write_whole(directory / FILE, json.dumps(plain(run), indent=2, ensure_ascii=False) + "\n", errors="backslashreplace")


def redacted(run: Run, redact: Callable[[str], str]) -> Run:
    """Returns the run with all texts redacted, because a command or the end of a log may contain secrets."""
    return redacted_record(run, redact)


def redacted_record(record: Redacted, redact: Callable[[str], str]) -> Redacted:
    """Returns a record (a frozen dataclass) with all texts redacted."""
    return read(type(record), json.loads(redact(json.dumps(plain(record)))))


def read_run(directory: Path) -> Run:
    """Returns the run of a directory. Raises ConfigError, with the file and the wrong key, if run.json cannot be read."""
    path = directory / FILE
    data = read_json_file(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ConfigError(_of_another_schema(path, data if isinstance(data, dict) else {}))
    try:
        return read(Run, data)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _of_another_schema(path: Path, data: Json) -> str:
    """Returns a message about a run.json of another schema."""
    schema, command = data.get("schema"), data.get("command")
    if not isinstance(schema, str) or not schema.startswith(SCHEMA.partition("/")[0]):
        return f"{path} is not a run of schema {SCHEMA}; name another run"
    again = shlex.join(map(str, command)) if isinstance(command, list) and command else "pytest"
    return f"{path} has schema {schema}, but this version reads only {SCHEMA}; run `{again}` again"


def find_run(name: str, reports: Path) -> Path:
    """Returns the directory of a finished run.

    `name` is the path of the run, the path of its run.json, or its name in the reports directory. If several runs have the name, the
    newest is returned. Raises ConfigError if there is no such run.
    """
    return directory_with(FILE, name, reports, "it is not a run directory, or its session did not finish")
