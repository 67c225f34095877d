"""Every option and its ini twin, once: a field of Settings declares it, and says how its text is read. The command line wins."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.runs.directory import LATEST
from pytest_agentbench.session.option_values import (
    assignment,
    budget,
    finite,
    first_trials,
    folder,
    most_rounds,
    names,
    number,
    objective,
    one_of,
    seconds,
    some_time,
    statuses,
    yaml_value,
)
from pytest_agentbench.suites.arms import CACHE_POLICIES, CARRY, Arm, parse_arms

PREFIX = "agentbench"
DEFAULT_CONCURRENCY = 8
CI = ("auto", "github", "gitlab", "off")
MOST_RETRIES, MOST_TAPS = 100, 64  # more would be a slip of a finger: nobody waits for so many
RERUN = ("infra_error", "cancelled")  # statuses of rollouts that a resumed run runs again unless the user says otherwise
READ = object()  # in place of a value for an empty text: it is read like any other


class PytestAgentbenchWarning(pytest.PytestWarning):
    """Advice about a session that is right as it is. `filterwarnings` can silence it, but `error` does not make it end the session."""


@dataclass(frozen=True)
class Option:
    """One `--agentbench-<name>`, with an ini key `agentbench_<name>`, and how its text becomes a value."""

    help: str
    metavar: str | None = None  # None: a switch; in brackets: the value may be left out
    default: str = ""
    read: Callable[[str], Any] = str  # raises ValueError with what the text should be
    empty: Any = None  # the value of an empty text, or READ
    many: Callable[[list[Any]], Any] | None = None  # it may be given several times, one per line in the ini file; makes one value of all
    name: str = ""

    @property
    def flag(self) -> str:
        return f"--{PREFIX}-{self.name}"

    @property
    def key(self) -> str:
        return f"{PREFIX}_{self.name.replace('-', '_')}"

    def value(self, config: pytest.Config) -> Any:
        """What it is in a session; raises pytest.UsageError that names the option and what would work."""
        given = config.getoption(self.key, None)
        given = config.getini(self.key) if given is None else given
        if self.many is not None:
            return self.many([self._read(text) for text in given])
        return self.empty if given in ("", None) and self.empty is not READ else self._read(given)

    def _read(self, text: Any) -> Any:
        try:
            return self.read(text)
        except ValueError as error:
            works = str(error)
            raise pytest.UsageError(f"{self.flag} {text}: {works if self.many else f'should be {works}'}") from error


def _option(help: str, metavar: str | None = None, default: str = "", *, name: str = "", **how: Any) -> Any:
    """A field that is one option, called like the field unless `name` says otherwise."""
    return dataclasses.field(metadata={"": Option(help, metavar, default, name=name, **how)})


def _again(field: Any, read: Callable[[str], Any]) -> Any:
    """A field with something else that the text of another field's option says; that option has a `name`."""
    return dataclasses.field(metadata={"": dataclasses.replace(field.metadata[""], read=read)})


def _several(prefix: str, **options: Option) -> Any:
    """A field with the values of several options, `<prefix>-<key>`, by their keys."""
    named = {key: dataclasses.replace(each, name=f"{prefix}-{key.replace('_', '-')}") for key, each in options.items()}
    return dataclasses.field(metadata=named)


@dataclass(frozen=True)
class Settings:
    """What the user asked for, checked. A new option is a field here."""

    backend: str = _option(
        "the stack under test: a name in backends/, a YAML file, or the base URL of a running server", "NAME", "embedded"
    )
    ab: tuple[Arm, ...] = _option(  # two, or none
        "compare two backends, or two agents as agent:KIND, in one session, in interleaved blocks",
        "[NAME=]A,[NAME=]B",
        read=parse_arms,
        empty=(),
    )
    cache: str = _option(
        "the prefix cache of the backend when measuring begins: `cold`, `primed`, or `carry` (as it is)",
        "POLICY",
        CARRY,
        read=one_of(CACHE_POLICIES),
        empty=CARRY,
    )
    keep_backend: float | None = _option(  # seconds
        "leave a stack running this long after the session (30m), for the next one of the same backend", "TIME", read=seconds
    )
    gpu_wait: float = _option("wait this long for GPUs that others have", "TIME", "0s", read=seconds, empty=0.0)  # seconds
    concurrency: int | None = _option("rollouts in flight at once (default: what -n says, or 8)", "N", read=number(1))
    workers: int | None = _option(
        "xdist workers that start with -n (default: one where tests only read rollouts, else as many as -n says)", "N", read=number(1)
    )
    limit: int | None = _option(
        "take only the first N scenarios of each suite, of those that -k, -m and the like leave: a quick check", "N", read=number(1)
    )
    trials: int | None = _option(
        "run every scenario N times, or with `auto:N` until the gate's verdict stands (default: what suite.yaml says)",
        "N",
        name="trials",
        read=first_trials,
    )
    rounds: int | None = _again(trials, most_rounds)  # of `auto`: trials are added round by round, so many at most
    variants: tuple[str, ...] = _option(
        "variants to run, separated by commas, or `all` (default: the suite's own agent)",
        "NAMES",
        "default",
        read=lambda text: names(text) or ("default",),
        empty=("default",),
    )
    agent: str | None = _option("the agent to run instead of the suite's own: a built-in one, or an import path", "KIND")
    changes: tuple[tuple[str, Any], ...] = _option(  # (dotted path, value)
        "change any value of suite.yaml, or with `backend.` in front of backend.yaml, for this run",
        "PATH=VALUE",
        name="set",
        many=tuple,
        read=assignment(yaml_value, "should be PATH=VALUE, for example agent.temperature=0.6"),
    )
    thresholds: Mapping[str, float] = _option(
        "replace a threshold of suite and backend: tsq=0.5 is a floor of each scenario, tsq.mean=0.8 the rule `tsq.mean >= 0.8 of run`",
        "NAME=VALUE",
        name="threshold",
        many=dict,
        read=assignment(finite, "should be NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7"),
    )
    slo: Mapping[str, float] = _option(  # objective -> milliseconds
        "what a good LLM call is, for goodput: ttft=500ms, itl=200ms, tpot=50ms, e2e=30s", "NAME=TIME", many=dict, read=objective
    )
    gate: tuple[str, ...] = _option(
        "a rule for the whole run: `tsq.mean >= -0.03 vs baseline`, `ttft.p95 <= 500ms`, `infra_error.rate <= 0.02`", "RULE", many=tuple
    )
    baseline: str | None = _option("what rules `vs baseline` compare with: a baseline file, a run, or its directory", "FILE|RUN")
    inconclusive: str = _option(
        "what a gate that cannot tell does to the exit status: `pass` leaves it, `fail` makes it 7",
        "pass|fail",
        "pass",
        read=one_of(("pass", "fail")),
        empty=READ,
    )
    verdict: str = _option(
        "who decides where there is a baseline: the `gate`, or the `tests`, as pytest has it",
        "gate|tests",
        "gate",
        read=one_of(("gate", "tests")),
        empty=READ,
    )
    time_limit: float | None = _option(  # seconds
        "start no rollout after this long (90s, 150m, 2h) and let those that run end", "TIME", read=some_time
    )
    budgets: Mapping[str, float | None] = _several(  # seconds; None is no limit
        "budget",
        rollout=Option("a rollout may take this long; then its status is `limit` (default: what suite.yaml says)", "TIME", read=some_time),
        connect=Option("the backend has to take a connection within this time; `off` for no limit", "TIME", "10s", read=budget),
        first_token=Option("the first token of a stream has to come within this time", "TIME", "5m", read=budget),
        idle=Option("every further token has to come within this time: a stall ends the call", "TIME", "2m", read=budget),
        call=Option("a whole LLM call may take this long", "TIME", "off", read=budget),
    )
    retries: int = _option(
        "how often a rollout that ended as infra_error is tried again", "N", "2", read=number(0, MOST_RETRIES), empty=READ
    )
    resume: str | None = _option(
        "go on with a run, and run only what is missing or failed: its name or directory (default: the latest)", "[RUN]"
    )
    resume_rerun: tuple[str, ...] = _option(
        "statuses of rollouts that a resumed run runs again, or `none`", "STATUSES", ",".join(RERUN), read=statuses, empty=()
    )
    taps: int = _option(
        "processes that relay and time the LLM calls: more than one when the report says that one is not enough",
        "N",
        "1",
        read=number(1, MOST_TAPS),
        empty=1,
    )
    ci: str = _option("what CI gets to read: `auto` (detected), `github`, `gitlab` or `off`", "WHERE", "auto", read=one_of(CI), empty=READ)
    reports: Path = _option("directory that run directories are written to", "DIR", "reports", read=folder, empty=READ)  # noqa: RUF009  # it is a field
    inline: bool = _option("run each rollout in the test's own call stack, without budgets; --pdb implies it; not with -n", read=bool)

    @property
    def insists(self) -> bool:
        """Whether a verdict was asked for: then what cannot run is an ERROR, no SKIP."""
        return bool(self.thresholds or self.gate or self.baseline)

    @property
    def suite_changes(self) -> list[tuple[str, Any]]:
        """The parts of --agentbench-set that concern suite.yaml; `model` is the agent's."""
        return [("agent.model" if path == "model" else path, value) for path, value in self.changes if not path.startswith("backend.")]

    @property
    def backend_changes(self) -> list[tuple[str, Any]]:
        return [(path.removeprefix("backend."), value) for path, value in self.changes if path.startswith("backend.")]


def _declared(field: dataclasses.Field[Any]) -> dict[str, Option]:
    """The options of a field, by their keys in its value; a field that is one option has it under an empty key."""
    options: Mapping[str, Option] = field.metadata
    return {key: dataclasses.replace(each, name=each.name or field.name.replace("_", "-")) for key, each in options.items()}


FIELDS = {field.name: _declared(field) for field in dataclasses.fields(Settings)}

OPTIONS = tuple({option.name: option for options in FIELDS.values() for option in options.values()}.values())


def add_options(parser: pytest.Parser) -> None:
    """Registers all options and ini keys."""
    group = parser.getgroup(PREFIX, "agent benchmarks (pytest-agentbench)")
    for option in OPTIONS:
        shared = {"default": None, "dest": option.key, "help": f"{option.help} (ini: {option.key})"}
        if option.metavar is None:
            group.addoption(option.flag, action="store_true", **shared)
            parser.addini(option.key, option.help, type="bool", default=False)
            continue
        how: dict[str, Any] = {"action": "append"} if option.many else {}
        if option.metavar.startswith("["):
            how = {"nargs": "?", "const": LATEST}
        group.addoption(option.flag, metavar=option.metavar.strip("[]"), **shared, **how)
        if option.many:
            parser.addini(option.key, option.help, type="linelist", default=[])
        else:
            parser.addini(option.key, option.help, type="string", default=option.default)


def read_settings(config: pytest.Config) -> Settings:
    """Options over ini values; raises pytest.UsageError that names the option and what would work."""
    values: dict[str, Any] = {}
    for name, options in FIELDS.items():
        read = {key: option.value(config) for key, option in options.items()}
        values[name] = read.get("", read)
    values["reports"] = config.rootpath / values["reports"]
    values["inline"] |= bool(config.getoption("usepdb", False))
    return Settings(**values)


def refuse_conflicts(config: pytest.Config, settings: Settings, workers: Sequence[str]) -> None:
    """Raises pytest.UsageError for options that do not go together."""
    if settings.inline and workers:
        raise pytest.UsageError("--agentbench-inline runs rollouts in this process and cannot be used with -n; leave out one of them")
    if settings.inline and (settings.ab or settings.cache != CARRY):
        raise pytest.UsageError(
            f"--{PREFIX}-inline runs rollouts when tests ask for them; --{PREFIX}-ab and --{PREFIX}-cache need blocks of them"
        )
    if settings.rounds and (settings.ab or settings.inline):
        other = "--agentbench-ab compares two arms" if settings.ab else "--agentbench-inline runs what a test asks for"
        raise pytest.UsageError(f"--{PREFIX}-trials=auto runs rounds of trials until a gate's verdict stands, and {other}; give a number")
    if config.getoption("agentbench_workers", None) is not None and config.getoption("numprocesses", None) is None:
        raise pytest.UsageError(f"--{PREFIX}-workers says how many xdist workers start with -n; add -n N, or leave it out")
    for arm in settings.ab[:1]:
        if config.getoption(f"agentbench_{arm.kind}", None) is not None:
            raise pytest.UsageError(f"--{PREFIX}-ab names two {arm.kind}s; leave out --{PREFIX}-{arm.kind}")
    if config.getoption("agentbench_resume_rerun", None) is not None and settings.resume is None:
        raise pytest.UsageError(f"--{PREFIX}-resume-rerun says what a resumed run runs again; add --{PREFIX}-resume, or leave it out")


def bare_resume(args: list[str]) -> None:
    """Gives `--agentbench-resume` its default value in a command line, so that it does not take the path that follows for one."""
    for place, word in enumerate(args):
        if word == "--":
            return
        if word == f"--{PREFIX}-resume":
            args[place] = f"{word}={LATEST}"


RERUNS_READ = (
    "--reruns: a test that is run again reads the same rollout, so its score cannot change; "
    "--agentbench-trials runs each scenario several times, --agentbench-retries tries an infra_error again"
)


def reruns_asked_for(config: pytest.Config) -> bool:
    """Whether pytest-rerunfailures is there and told to run failed tests again."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return False
    given = (config.getoption("force_reruns", None), config.getoption("reruns", None), config.getini("reruns"))
    return next((int(count) > 0 for count in given if count not in (None, "")), False)


def advise(config: pytest.Config, text: str) -> None:
    """Puts a PytestAgentbenchWarning into the session's summary of warnings."""
    advice = PytestAgentbenchWarning(text)
    try:
        config.issue_config_time_warning(advice, stacklevel=2)
    except PytestAgentbenchWarning:  # the user's filters make errors of warnings
        message = warnings.WarningMessage(advice, PytestAgentbenchWarning, __file__, 0)
        facts = {"warning_message": message, "when": "config", "nodeid": "", "location": None}
        config.hook.pytest_warning_recorded.call_historic(kwargs=facts)
