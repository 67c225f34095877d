"""The options as pytest has them: each has an ini twin, and the command line wins; and one of pytest-asyncio's.

pytest-asyncio, which this package depends on, deprecates that its fixtures' loop scope is unset. Where warnings are errors, that
would end the session. So the scope is set until all plugins are configured, and then unset again if the user has not set it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.runs.directory import LATEST
from pytest_agentbench.runs.option import PREFIX, Option, declared
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.suites.arms import CARRY, VARIANT, Arm

DEFAULT_CONCURRENCY = 8

FIELDS = declared(RunOptions)

OPTIONS = tuple({option.name: option for options in FIELDS.values() for option in options.values()}.values())


class PytestAgentbenchWarning(pytest.PytestWarning):
    """Advice about a session that is right as it is. `filterwarnings` can silence it, but `error` does not make it end the session."""


@dataclass(frozen=True, kw_only=True)
class Settings(RunOptions):
    """What the user asked for, checked. A new option is a field of RunOptions."""

    reports_directory: Path  # that run directories are written to

    @property
    def insists(self) -> bool:
        """Whether a verdict was asked for: then what cannot run is an ERROR, no SKIP."""
        return bool(self.thresholds or self.gate or self.baseline)

    @property
    def suite_changes(self) -> list[tuple[str, Any]]:
        """The parts of --agentbench-set that concern suite.yaml; `model` is the agent's."""
        return [
            ("agent.model" if path == "model" else path, value) for path, value in self.changes.items() if not path.startswith("backend.")
        ]

    @property
    def backend_changes(self) -> list[tuple[str, Any]]:
        return [(path.removeprefix("backend."), value) for path, value in self.changes.items() if path.startswith("backend.")]


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
        read = {key: _value(option, config) for key, option in options.items()}
        values[name] = read.get("", read)
    values["reports_directory"] = config.rootpath / values["reports"]
    values["reports"] = values["reports_directory"].name
    values["inline"] |= bool(config.getoption("usepdb", False))
    return Settings(**values)


def _value(option: Option, config: pytest.Config) -> Any:
    value = config.getoption(option.key, None)
    try:
        return option.value(config.getini(option.key) if value is None else value)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def refuse_conflicts(config: pytest.Config, settings: Settings, workers: Sequence[str]) -> None:
    """Raises pytest.UsageError for options that do not go together."""
    if settings.inline and workers:
        raise pytest.UsageError("--agentbench-inline runs rollouts in this process and cannot be used with -n; leave out one of them")
    if settings.inline and (settings.ab or settings.cache != CARRY):
        raise pytest.UsageError(
            f"--{PREFIX}-inline runs rollouts when tests ask for them; --{PREFIX}-ab and --{PREFIX}-cache need blocks of them"
        )
    if settings.rounds and (settings.ab or settings.inline):
        other = "--agentbench-ab compares arms" if settings.ab else "--agentbench-inline runs what a test asks for"
        raise pytest.UsageError(f"--{PREFIX}-trials=auto runs rounds of trials until a gate's verdict stands, and {other}; give a number")
    if config.getoption("agentbench_workers", None) is not None and config.getoption("numprocesses", None) is None:
        raise pytest.UsageError(f"--{PREFIX}-workers says how many xdist workers start with -n; add -n N, or leave it out")
    if settings.ab_pairs and not settings.ab:
        raise pytest.UsageError(f"--{PREFIX}-ab-pairs compares all arms with each other; add --{PREFIX}-ab, or leave it out")
    for arm in settings.ab[:1]:
        _refuse_arm_options(config, settings, arm)
    if config.getoption("agentbench_resume_rerun", None) is not None and settings.resume is None:
        raise pytest.UsageError(f"--{PREFIX}-resume-rerun says what a resumed run runs again; add --{PREFIX}-resume, or leave it out")


def _refuse_arm_options(config: pytest.Config, settings: Settings, arm: Arm) -> None:
    """Raises pytest.UsageError for an option that says for all arms what each has of its own."""
    name = arm.path or {VARIANT: "variants"}.get(arm.kind, arm.kind)
    if config.getoption(f"{PREFIX}_{name}", None) is not None:
        raise pytest.UsageError(f"--{PREFIX}-ab names the {name if arm.path else f'{arm.kind}s'}; leave out --{PREFIX}-{name}")
    for path in ("agent.model" if path == "model" else path for path in settings.changes):
        if f"{arm.path}.".startswith(f"{path}.") or f"{path}.".startswith(f"{arm.path}."):
            raise pytest.UsageError(f"--{PREFIX}-ab has arms for values of {arm.path}; leave out --{PREFIX}-set {path}")


def complete_resume_option(args: list[str]) -> None:
    """Gives `--agentbench-resume` its default value in a command line, so that it does not take the path that follows for one."""
    for place, word in enumerate(args):
        if word == "--":
            return
        if word == f"--{PREFIX}-resume":
            args[place] = f"{word}={LATEST}"


RERUNS_ADVICE = (
    "--reruns: a test that is run again reads the same rollout, so its score cannot change; "
    "--agentbench-trials runs each scenario several times, --agentbench-retries tries an infra_error again"
)


def reruns_requested(config: pytest.Config) -> bool:
    """Whether pytest-rerunfailures is there and told to run failed tests again."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return False
    counts = (config.getoption("force_reruns", None), config.getoption("reruns", None), config.getini("reruns"))
    return next((int(count) > 0 for count in counts if count not in (None, "")), False)


def advise(config: pytest.Config, text: str) -> None:
    """Puts a PytestAgentbenchWarning into the session's summary of warnings."""
    advice = PytestAgentbenchWarning(text)
    try:
        config.issue_config_time_warning(advice, stacklevel=2)
    except PytestAgentbenchWarning:  # the user's filters make errors of warnings
        message = warnings.WarningMessage(advice, PytestAgentbenchWarning, __file__, 0)
        facts = {"warning_message": message, "when": "config", "nodeid": "", "location": None}
        config.hook.pytest_warning_recorded.call_historic(kwargs=facts)


ASYNCIO_SCOPE = "asyncio_default_fixture_loop_scope"
UNSET_SCOPE = pytest.StashKey[object]()


def set_asyncio_scope(config: pytest.Config) -> None:
    """Called when all plugins of the environment are there."""
    if config.pluginmanager.hasplugin("asyncio") and not (unset := config.getini(ASYNCIO_SCOPE)):
        config.stash[UNSET_SCOPE] = unset
        config._inicache[ASYNCIO_SCOPE] = "function"  # pytest has no public way to set a value


def restore_asyncio_scope(config: pytest.Config) -> None:
    """Called when all others have been configured."""
    if UNSET_SCOPE in config.stash:
        config._inicache[ASYNCIO_SCOPE] = config.stash[UNSET_SCOPE]
        del config.stash[UNSET_SCOPE]
