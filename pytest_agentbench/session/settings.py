"""Every option and its ini twin, once; the command line wins over the ini file. One frozen Settings comes out."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import MOST_TRIALS, STATUSES
from pytest_agentbench.runs.directory import LATEST
from pytest_agentbench.suites.arms import CACHE_POLICIES, CARRY, Arm, parse_arms

PREFIX = "agentbench"
DEFAULT_CONCURRENCY = 8
CI = ("auto", "github", "gitlab", "off")
AUTO, USUAL_ROUNDS = "auto", 5  # of trials: as many as it takes, up to so many rounds
MOST_RETRIES, MOST_TAPS = 100, 64  # more would be a slip of a finger: nobody waits for so many
RERUN = ("infra_error", "cancelled")  # statuses of rollouts that a resumed run runs again unless the user says otherwise


class PytestAgentbenchWarning(pytest.PytestWarning):
    """Advice about a session that is right as it is. `filterwarnings` can silence it, but `error` does not make it end the session."""


class Option(NamedTuple):
    """One `--agentbench-<name>`, with an ini key `agentbench_<name>`."""

    name: str
    help: str
    metavar: str | None = None  # None: a switch; in brackets: the value may be left out
    default: str = ""
    many: bool = False  # may be given several times; one per line in the ini file


OPTIONS = (
    Option("backend", "the stack under test: a name in backends/, a YAML file, or the base URL of a running server", "NAME", "embedded"),
    Option("ab", "compare two backends, or two agents as agent:KIND, in one session, in interleaved blocks", "[NAME=]A,[NAME=]B"),
    Option("cache", "the prefix cache of the backend when measuring begins: `cold`, `primed`, or `carry` (as it is)", "POLICY", CARRY),
    Option("keep-backend", "leave a stack running this long after the session (30m), for the next one of the same backend", "TIME"),
    Option("gpu-wait", "wait this long for GPUs that others have", "TIME", "0s"),
    Option("concurrency", "rollouts in flight at once (default: what -n says, or 8)", "N"),
    Option("workers", "xdist workers that start with -n (default: one where tests only read rollouts, else as many as -n says)", "N"),
    Option("limit", "take only the first N scenarios of each suite, of those that -k, -m and the like leave: a quick check", "N"),
    Option("trials", "run every scenario N times, or with `auto:N` until the gate's verdict stands (default: what suite.yaml says)", "N"),
    Option("variants", "variants to run, separated by commas, or `all` (default: the suite's own agent)", "NAMES", "default"),
    Option("agent", "the agent to run instead of the suite's own: a built-in one, or an import path", "KIND"),
    Option("set", "change any value of suite.yaml, or with `backend.` in front of backend.yaml, for this run", "PATH=VALUE", many=True),
    Option("threshold", "replace a threshold of suite and backend: tsq=0.5 a scenario, tsq.mean=0.8 for the mean", "NAME=VALUE", many=True),
    Option("slo", "what a good LLM call is, for goodput: ttft=500ms, itl=200ms, tpot=50ms, e2e=30s", "NAME=TIME", many=True),
    Option(
        "gate",
        "a rule for the whole run: `tsq.mean >= -0.03 vs baseline`, `ttft.p95 <= 500ms`, `infra_error.rate <= 0.02`",
        "RULE",
        many=True,
    ),
    Option("baseline", "what rules `vs baseline` compare with: a baseline file, a run, or its directory", "FILE|RUN"),
    Option(
        "inconclusive", "what a gate that cannot tell does to the exit status: `pass` leaves it, `fail` makes it 7", "pass|fail", "pass"
    ),
    Option("verdict", "who decides where there is a baseline: the `gate`, or the `tests`, as pytest has it", "gate|tests", "gate"),
    Option("time-limit", "start no rollout after this long (90s, 150m, 2h) and let those that run end", "TIME"),
    Option("budget-rollout", "a rollout may take this long; then its status is `limit` (default: what suite.yaml says)", "TIME"),
    Option("budget-connect", "the backend has to take a connection within this time; `off` for no limit", "TIME", "10s"),
    Option("budget-first-token", "the first token of a stream has to come within this time", "TIME", "5m"),
    Option("budget-idle", "every further token has to come within this time: a stall ends the call", "TIME", "2m"),
    Option("budget-call", "a whole LLM call may take this long", "TIME", "off"),
    Option("retries", "how often a rollout that ended as infra_error is tried again", "N", "2"),
    Option("resume", "go on with a run, and run only what is missing or failed: its name or directory (default: the latest)", "[RUN]"),
    Option("resume-rerun", "statuses of rollouts that a resumed run runs again, or `none`", "STATUSES", ",".join(RERUN)),
    Option("taps", "processes that relay and time the LLM calls: more than one when the report says that one is not enough", "N", "1"),
    Option("ci", "what CI gets to read: `auto` (detected), `github`, `gitlab` or `off`", "WHERE", "auto"),
    Option("reports", "directory that run directories are written to", "DIR", "reports"),
    Option("inline", "run each rollout in the test's own call stack, without budgets; --pdb implies it; not with -n"),
)


@dataclass(frozen=True)
class Settings:
    """What the user asked for, checked."""

    backend: str
    ab: tuple[Arm, ...]  # two, or none
    cache: str  # one of CACHE_POLICIES
    keep_backend: float | None  # seconds
    gpu_wait: float  # seconds
    concurrency: int | None
    workers: int | None
    limit: int | None
    trials: int | None
    rounds: int | None  # of `auto`: trials are added round by round, so many at most, until the verdict stands
    variants: tuple[str, ...]
    agent: str | None
    changes: tuple[tuple[str, Any], ...]  # of --agentbench-set: (dotted path, value)
    thresholds: Mapping[str, float]  # of --agentbench-threshold
    slo: Mapping[str, float]  # of --agentbench-slo: objective -> milliseconds
    gate: tuple[str, ...]  # of --agentbench-gate
    baseline: str | None  # a file or a run
    inconclusive: str  # pass | fail
    verdict: str  # gate | tests
    time_limit: float | None  # seconds
    budgets: Mapping[str, float | None]  # seconds by name: rollout, connect, first_token, idle, call; None is no limit
    taps: int
    retries: int
    ci: str  # one of CI
    resume: str | None  # a run, or `latest`
    resume_rerun: tuple[str, ...]  # statuses
    reports: Path
    inline: bool

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


def add_options(parser: pytest.Parser) -> None:
    """Registers all options and ini keys."""
    group = parser.getgroup(PREFIX, "agent benchmarks (pytest-agentbench)")
    for option in OPTIONS:
        key = _key(option)
        extra = f" (ini: {key})"
        if option.metavar is None:
            group.addoption(_flag(option), action="store_true", default=None, dest=key, help=option.help + extra)
            parser.addini(key, option.help, type="bool", default=False)
        else:
            how: dict[str, Any] = {"action": "append"} if option.many else {}
            if option.metavar.startswith("["):
                how = {"nargs": "?", "const": LATEST}
            group.addoption(_flag(option), default=None, dest=key, metavar=option.metavar.strip("[]"), help=option.help + extra, **how)
            if option.many:
                parser.addini(key, option.help, type="linelist", default=[])
            else:
                parser.addini(key, option.help, type="string", default=option.default)


def _flag(option: Option) -> str:
    return f"--{PREFIX}-{option.name}"


def _key(option: Option) -> str:
    return f"{PREFIX}_{option.name.replace('-', '_')}"


def read_settings(config: pytest.Config) -> Settings:
    """Options over ini values; raises pytest.UsageError that names the option and what would work."""
    values = {option.name: _value(config, option) for option in OPTIONS}
    return Settings(
        backend=values["backend"],
        ab=_checked("ab", values, parse_arms) or (),
        cache=_checked("cache", values, _cache_policy) or CARRY,
        keep_backend=_checked("keep-backend", values, seconds),
        gpu_wait=_checked("gpu-wait", values, seconds) or 0.0,
        concurrency=_checked("concurrency", values, _positive),
        workers=_checked("workers", values, _positive),
        limit=_checked("limit", values, _positive),
        trials=_checked("trials", values, _trials),
        rounds=_checked("trials", values, _rounds),
        variants=_names(values["variants"]) or ("default",),
        agent=values["agent"] or None,
        changes=tuple(_assignment("set", text, _yaml) for text in values["set"]),
        thresholds=dict(_assignment("threshold", text, _finite) for text in values["threshold"]),
        slo=dict(_objective(text) for text in values["slo"]),
        gate=tuple(values["gate"]),
        baseline=values["baseline"] or None,
        inconclusive=_one_of("inconclusive", values, ("pass", "fail")),
        verdict=_one_of("verdict", values, ("gate", "tests")),
        time_limit=_checked("time-limit", values, _some_time),
        budgets={
            "rollout": _checked("budget-rollout", values, _some_time),
            "connect": _checked("budget-connect", values, _budget),
            "first_token": _checked("budget-first-token", values, _budget),
            "idle": _checked("budget-idle", values, _budget),
            "call": _checked("budget-call", values, _budget),
        },
        taps=_checked("taps", values, functools.partial(_number, least=1, most=MOST_TAPS)) or 1,
        retries=_retries(values["retries"]),
        ci=values["ci"] if values["ci"] in CI else _usage("ci", values["ci"], f"one of {', '.join(CI)}"),
        resume=values["resume"] or None,
        resume_rerun=_rerun(values["resume-rerun"]),
        reports=Path(config.rootpath, values["reports"] or _usage("reports", "", "a directory, for example reports")),
        inline=bool(values["inline"]) or bool(config.getoption("usepdb", False)),
    )


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
        raise pytest.UsageError(f"--{PREFIX}-trials=auto runs rounds of trials until a gate's verdict stands, and {other}: give a number")
    if config.getoption("agentbench_workers", None) is not None and config.getoption("numprocesses", None) is None:
        raise pytest.UsageError(f"--{PREFIX}-workers says how many xdist workers start with -n; add -n N, or leave it out")
    for arm in settings.ab[:1]:
        if config.getoption(f"agentbench_{arm.kind}", None) is not None:
            raise pytest.UsageError(f"--{PREFIX}-ab names two {arm.kind}s; leave out --{PREFIX}-{arm.kind}")
    if config.getoption("agentbench_resume_rerun", None) is not None and settings.resume is None:
        raise pytest.UsageError(f"--{PREFIX}-resume-rerun says what a resumed run runs again; add --{PREFIX}-resume, or leave it out")


def _cache_policy(text: str) -> str:
    if text not in CACHE_POLICIES:
        raise ValueError(f"one of {', '.join(CACHE_POLICIES)}")
    return text


def _rerun(text: str) -> tuple[str, ...]:
    """Statuses; `none` stands for none of them."""
    names = _names(text)
    if names != ("none",) and (wrong := [name for name in names if name not in STATUSES]):
        _usage("resume-rerun", wrong[0], f"statuses separated by commas ({', '.join(STATUSES)}), or `none`")
    return () if names == ("none",) else names


def bare_resume(args: list[str]) -> None:
    """Gives `--agentbench-resume` its default value in a command line, so that it does not take the path that follows for one."""
    for place, word in enumerate(args):
        if word == "--":
            return
        if word == f"--{PREFIX}-resume":
            args[place] = f"{word}={LATEST}"


def _value(config: pytest.Config, option: Option) -> Any:
    given = config.getoption(_key(option), None)
    return config.getini(_key(option)) if given is None else given


def _checked(name: str, values: Mapping[str, Any], convert: Callable[[str], Any]) -> Any:
    if values[name] in ("", None):
        return None
    try:
        return convert(str(values[name]))
    except ValueError as error:
        _usage(name, values[name], str(error))


def _one_of(name: str, values: Mapping[str, Any], words: Sequence[str]) -> str:
    word: str = values[name]
    return word if word in words else _usage(name, word, " or ".join(words))


def _usage(name: str, given: object, works: str) -> NoReturn:
    raise pytest.UsageError(f"--{PREFIX}-{name} {given}: should be {works}")


def _names(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("a whole number from 1 up")
    return int(text)


def _trials(text: str) -> int:
    """Of which tests are made; with rounds tests read the first one."""
    if text.partition(":")[0] == AUTO:
        return 1
    try:
        return _number(text, least=1, most=MOST_TRIALS)
    except ValueError as error:
        raise ValueError(f"{error}, or `{AUTO}`, or `{AUTO}:N` with at most N rounds of them") from error


def _rounds(text: str) -> int | None:
    word, colon, most = text.partition(":")
    if word != AUTO:
        return None
    from pytest_agentbench.stats.sequential import FIRST_LOOK, MOST_ROUNDS

    try:
        return _number(most, FIRST_LOOK, MOST_ROUNDS) if colon else USUAL_ROUNDS
    except ValueError as error:
        raise ValueError(f"`{AUTO}`, or `{AUTO}:N` with {error} for N") from error


def _retries(text: str) -> int:
    try:
        return _number(text, least=0, most=MOST_RETRIES)
    except ValueError as error:
        _usage("retries", text, str(error))


def _number(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"a whole number from {least} to {most}")
    return int(text)


def seconds(text: str) -> float:
    """Seconds of a time as options have it; raises ValueError that says what would work."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if not found:
        raise ValueError("a time such as 90s, 150m or 2h")
    return float(found[1]) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3600}[found[2]]


def _some_time(text: str) -> float:
    """Seconds of a time in which something can happen."""
    if not (limit := seconds(text)):
        raise ValueError("a time above 0, such as 90s, 150m or 2h")
    return limit


def _budget(text: str) -> float | None:
    """Seconds of a budget; None for `off`."""
    if text.strip() == "off":
        return None
    try:
        return _some_time(text)
    except ValueError:
        raise ValueError("a time such as 500ms, 90s or 10m, or `off`") from None


def _assignment(name: str, text: str, convert: Callable[[str], Any]) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    try:
        if not equals or not path.strip():
            raise ValueError
        return path.strip(), convert(value)
    except ValueError:
        numbers = "NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7"
        _usage(name, text, numbers if name == "threshold" else "PATH=VALUE, for example agent.temperature=0.6")


def _objective(text: str) -> tuple[str, float]:
    from pytest_agentbench.metrics.goodput import parse

    try:
        return parse(text)
    except ValueError as error:
        raise pytest.UsageError(f"--{PREFIX}-slo {text}: {error}") from error


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def _yaml(text: str) -> Any:
    from pytest_agentbench.lib.config import parse_yaml

    try:
        return parse_yaml(text, "value")
    except ConfigError as error:
        raise ValueError(str(error)) from error


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
