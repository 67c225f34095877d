"""The pytest options of the plugin. Each can also be set in the ini file, and the command line overrides it.

Also a workaround for pytest-asyncio, which this package depends on: it warns if the loop scope of its fixtures is not set, and a session
in which warnings are errors would end. So the scope is set until all plugins are configured, and then unset again if the user has not
set it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import did_you_mean
from pytest_agentbench.runs.directory import LATEST
from pytest_agentbench.runs.option import PREFIX, Option, declared
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.suites.arms import CARRY, VARIANT, Arm

DEFAULT_CONCURRENCY = 8

FIELDS = declared(RunOptions)

OPTIONS = tuple({option.name: option for options in FIELDS.values() for option in options.values()}.values())


class PytestAgentbenchWarning(pytest.PytestWarning):
    """Advice about a valid session. `filterwarnings` can silence it, but the filter `error` does not make it end the session."""


@dataclass(frozen=True, kw_only=True)
class Settings(RunOptions):
    """The checked values of all options. To add an option, add a field to RunOptions."""

    reports_directory: Path  # the parent of all run directories

    @property
    def insists(self) -> bool:
        """Whether an option requests a verdict. Tests that cannot run are then an ERROR instead of a SKIP."""
        return bool(self.thresholds or self.gate or self.baseline)

    @property
    def uses_nodes(self) -> bool:
        """Whether node workers make the attempts."""
        return self.nodes is not None or self.node_socket["listen"] is not None

    @property
    def suite_changes(self) -> list[tuple[str, Any]]:
        """The parts of --agentbench-set that change suite.yaml. `model` means `agent.model`."""
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
    """Reads all options and ini values. Raises pytest.UsageError with the option, its value and a correct one."""
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
    """Raises pytest.UsageError for options that cannot be combined."""
    if settings.inline and workers:
        raise pytest.UsageError("--agentbench-inline runs rollouts in this process and cannot be used with -n; leave out one of them")
    if settings.inline and (settings.ab or settings.cache != CARRY):
        raise pytest.UsageError(
            f"--{PREFIX}-inline runs each rollout in its test, but --{PREFIX}-ab and --{PREFIX}-cache run rollouts in blocks; "
            "leave out one of them"
        )
    if settings.rounds and (settings.ab or settings.inline):
        other = "--agentbench-ab" if settings.ab else "--agentbench-inline"
        raise pytest.UsageError(f"--{PREFIX}-trials=auto cannot be used with {other}; set a number of trials, such as --{PREFIX}-trials=5")
    _refuse_node_options(config, settings)
    if config.getoption("agentbench_workers", None) is not None and config.getoption("numprocesses", None) is None:
        raise pytest.UsageError(f"--{PREFIX}-workers sets how many xdist workers start with -n; add -n N, or leave it out")
    if settings.ab_pairs and not settings.ab:
        raise pytest.UsageError(f"--{PREFIX}-ab-pairs compares all arms with each other; add --{PREFIX}-ab, or leave it out")
    for arm in settings.ab[:1]:
        _refuse_arm_options(config, settings, arm)
    if config.getoption("agentbench_resume_rerun", None) is not None and settings.resume is None:
        raise pytest.UsageError(f"--{PREFIX}-resume-rerun sets what a resumed run runs again; add --{PREFIX}-resume, or leave it out")


def _refuse_node_options(config: pytest.Config, settings: Settings) -> None:
    """Raises pytest.UsageError for options about node workers that have no effect, or contradict others."""
    if settings.inline and settings.uses_nodes:
        raise pytest.UsageError(
            f"--{PREFIX}-inline runs rollouts in this process, and --{PREFIX}-nodes on node workers; leave out one of them"
        )
    if not settings.uses_nodes:
        for name in ("advertise", "wait", "tls"):
            if config.getoption(f"agentbench_nodes_{name}", None) is not None:
                raise pytest.UsageError(
                    f"--{PREFIX}-nodes-{name} needs node workers; add --{PREFIX}-nodes=local:N or --{PREFIX}-nodes-listen"
                )


def _refuse_arm_options(config: pytest.Config, settings: Settings, arm: Arm) -> None:
    """Raises pytest.UsageError for an option that sets the value in which the arms (settings under comparison) differ."""
    name = arm.path or {VARIANT: "variants"}.get(arm.kind, arm.kind)
    if config.getoption(f"{PREFIX}_{name}", None) is not None:
        raise pytest.UsageError(f"--{PREFIX}-ab names the {name if arm.path else f'{arm.kind}s'}; leave out --{PREFIX}-{name}")
    own = {path for each in settings.ab for path in each.settings}
    for path in ("agent.model" if path == "model" else path for path in settings.changes):
        if shared := next((each for each in sorted(own) if f"{each}.".startswith(f"{path}.") or f"{path}.".startswith(f"{each}.")), None):
            raise pytest.UsageError(f"--{PREFIX}-ab has arms for values of {shared}; leave out --{PREFIX}-set {path}")


def complete_resume_option(args: list[str]) -> None:
    """Adds the default value to `--agentbench-resume` without one, so that it does not take the path that follows as its value."""
    for place, word in enumerate(args):
        if word == "--":
            return
        if word == f"--{PREFIX}-resume":
            args[place] = f"{word}={LATEST}"


def suggest_options(parser: pytest.Parser, args: Sequence[str]) -> None:
    """Adds to pytest's message about unknown arguments which options of this plugin were probably meant."""
    flags = [option.flag for option in OPTIONS]
    for name in (word.partition("=")[0] for word in takewhile("--".__ne__, args)):
        if name.startswith(f"--{PREFIX}") and name not in flags and (hint := did_you_mean(name, flags)):
            parser.extra_info[name] = f"there is no such option{hint}"


RERUNS_ADVICE = (
    "--reruns: a test that is run again reads the same rollout, so its score cannot change; "
    "use --agentbench-trials to run each scenario several times, or --agentbench-retries to repeat attempts that end as infra_error"
)


def reruns_requested(config: pytest.Config) -> bool:
    """Returns whether pytest-rerunfailures is installed and set to run failed tests again."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return False
    counts = (config.getoption("force_reruns", None), config.getoption("reruns", None), config.getini("reruns"))
    return next((int(count) > 0 for count in counts if count not in (None, "")), False)


def advise(config: pytest.Config, text: str) -> None:
    """Puts a PytestAgentbenchWarning into the session's summary of warnings."""
    advice = PytestAgentbenchWarning(text)
    try:
        config.issue_config_time_warning(advice, stacklevel=2)
    except PytestAgentbenchWarning:  # The user's filters turn warnings into errors.
        message = warnings.WarningMessage(advice, PytestAgentbenchWarning, __file__, 0)
        facts = {"warning_message": message, "when": "config", "nodeid": "", "location": None}
        config.hook.pytest_warning_recorded.call_historic(kwargs=facts)


ASYNCIO_SCOPE = "asyncio_default_fixture_loop_scope"
UNSET_SCOPE = pytest.StashKey[object]()


def set_asyncio_scope(config: pytest.Config) -> None:
    """Sets the loop scope of pytest-asyncio if the user has not. Called when all installed plugins are loaded."""
    if config.pluginmanager.hasplugin("asyncio") and not (unset := config.getini(ASYNCIO_SCOPE)):
        config.stash[UNSET_SCOPE] = unset
        config._inicache[ASYNCIO_SCOPE] = "function"  # pytest has no public way to set an ini value.


def restore_asyncio_scope(config: pytest.Config) -> None:
    """Unsets the loop scope that `set_asyncio_scope` has set. Called when all other plugins are configured."""
    if UNSET_SCOPE in config.stash:
        config._inicache[ASYNCIO_SCOPE] = config.stash[UNSET_SCOPE]
        del config.stash[UNSET_SCOPE]
