"""Compiles suites before a session starts its backend: reads each suite's folder, parses its gate rules, and checks everything once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import brings_code, make_agent
from pytest_agentbench.errors import ConfigError, MissingData, unknown_name
from pytest_agentbench.gate.rules import Rule, parse_rule
from pytest_agentbench.rollouts.checks import CHECKS, SuiteCheck, SuiteDraft, plugin_checks
from pytest_agentbench.rollouts.isolation.codecheck import brings_any, check_code
from pytest_agentbench.rollouts.isolation.protocol import FromCodeCheck, NotLoaded
from pytest_agentbench.runs.builder import pass_threshold_of
from pytest_agentbench.scorers import built_in_scales
from pytest_agentbench.suites import arms as arms_of
from pytest_agentbench.suites.arms import Arm, VariantOrigin
from pytest_agentbench.suites.folder import SuiteText, read_suite
from pytest_agentbench.suites.suite import SUITE_FILE, Suite, keys_in_names
from pytest_agentbench.tools.factory import tool_kind

Result = TypeVar("Result")

PASS_RATES = "pass"  # beginning of rules such as `pass^3 >= 0.7`, which depend on the main score
MOST = 10  # maximum number of problems of a suite that are shown


@dataclass(frozen=True)
class CompileOptions:
    """Options of the command line that change suites or choose their variants."""

    changes: Sequence[tuple[str, Any]] = ()  # (dotted path, value)
    agent: str | None = None  # agent that replaces the suite's own
    variants: Sequence[str] = (arms_of.DEFAULT,)
    arms: Sequence[Arm] = ()  # arms of an A/B session
    trials: int | None = None

    def explain(self, faults: str, file: Path) -> str:
        """Returns a message about problems of a suite.yaml: `faults`, and the command-line options that have changed its settings."""
        options = [*(["--agentbench-agent"] if self.agent else []), *(f"--agentbench-set {name}" for name, _ in self.changes)]
        about = f"\n{file}: these problems are about the file" if "\n" in faults else ""
        return f"{faults}{about} (as changed by {', '.join(options)})" if options else faults


AS_IT_IS = CompileOptions()


@dataclass(frozen=True)
class CompiledSuite:
    """A suite that passed all checks, with what a session needs from its folder: variants, agents, thresholds, gate rules."""

    suite: Suite  # with the scales that its scorers declare
    variants: tuple[str, ...]  # variants that run; in an A/B session one for each variant and arm
    trials: int
    thresholds: Mapping[str, float]  # effective thresholds
    rules: tuple[Rule, ...] = ()  # parsed from `gate`
    agents: Mapping[str, Agent] = field(default_factory=dict)  # variant -> its agent, if it is a built-in one
    origins: Mapping[str, VariantOrigin] = field(default_factory=dict)  # in an A/B session: variant -> suite's own variant and arm

    @property
    def name(self) -> str:
        return self.suite.name

    @property
    def folder(self) -> Path:
        return self.suite.folder


class UnsoundSuite(ConfigError):
    """Raised for a suite that cannot run. The message has a line for each of the first MOST problems."""

    def __init__(self, file: Path, problems: Sequence[str], options: CompileOptions) -> None:
        """Takes the suite.yaml, its problems as sentences without a path, and the options with which the file was read."""
        lines = [f"{file}: {problem}" for problem in problems[:MOST]]
        if more := len(problems) - MOST if len(problems) > MOST else 0:
            lines.append(f"{file}: and {more} more problem{'s' * (more > 1)}")
        super().__init__(options.explain("\n".join(lines), file))


def compile_suite(text: SuiteText, options: CompileOptions = AS_IT_IS) -> CompiledSuite:
    """Reads and checks the suite of a parsed suite.yaml. The suite's own code is imported in a separate process.

    Raises:
        UnsoundSuite: The suite has problems.
        MissingData: The data of the suite are not on this machine.
    """
    return _finish(_read(text, options))


def compile_all(texts: Iterable[tuple[SuiteText, CompileOptions]]) -> list[CompiledSuite | ConfigError]:
    """Compiles several suites. Returns for each one the compiled suite, or the error that `compile_suite` would raise.

    The code of different suites is checked in parallel.
    """
    readings, checks = [_result(_read, text, options) for text, options in texts], (*CHECKS, *plugin_checks())
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        codes = [threads.submit(each.code_check) if isinstance(each, _Reading) and each.brings_code else None for each in readings]
    return [
        each if isinstance(each, ConfigError) else _result(each.finish, code and code.result(), checks)
        for each, code in zip(readings, codes, strict=True)
    ]


def _result(function: Callable[..., Result], *arguments: Any) -> Result | ConfigError:
    try:
        return function(*arguments)
    except ConfigError as error:
        return error


def checked(suite: Suite, variants: Sequence[str] = (arms_of.DEFAULT,)) -> CompiledSuite:
    """Checks a suite that was already read, and returns it compiled. Raises UnsoundSuite if the suite has problems."""
    return _finish(_Reading(suite, tuple(variants), {}, AS_IT_IS, []))


def _finish(reading: _Reading) -> CompiledSuite:
    return reading.finish(reading.code_check(), (*CHECKS, *plugin_checks()))


def _read(text: SuiteText, options: CompileOptions) -> _Reading:
    """Reads a suite with its data. Raises ConfigError if reading fails.

    In an A/B session, which compares settings (arms), the result has a variant for each pair of a variant of the suite and an arm.
    """
    try:
        suite = read_suite(text, options.changes, options.agent)
        # Raise this alone, because sentences about other faults would contain the key.
        if faults := [*keys_in_names((suite.name, *suite.variants), suite.scenarios)]:
            raise UnsoundSuite(text.file, faults, options)
        problems, variants = _choose_variants(suite, options.variants)
        origins: Mapping[str, VariantOrigin] = {}
        if options.arms:
            origins = arms_of.origins(variants, options.arms)
            suite, variants = arms_of.in_arms(suite, variants, options.arms)
    except (MissingData, UnsoundSuite):
        raise
    except ConfigError as error:
        raise ConfigError(options.explain(str(error), text.file)) from error
    return _Reading(suite, variants, origins, options, problems)


def _choose_variants(suite: Suite, names: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Chooses the variants of a suite that run: those in `names`, or all of them if the only name is `all`.

    Returns a sentence for each unknown name, and the chosen variants.
    """
    every = (arms_of.DEFAULT, *suite.variants)
    if tuple(names) == ("all",):
        return [], every
    unknown = [f"{unknown_name('variant', name, every)}, or `all`" for name in names if name not in every]
    return unknown, tuple(name for name in names if name in every)


@dataclass
class _Reading:
    """A suite while it is compiled: it was read, and each check adds its problems. `finish` returns the result."""

    suite: Suite
    variants: tuple[str, ...]
    origins: Mapping[str, VariantOrigin]
    options: CompileOptions
    problems: list[str]
    agents: dict[str, Agent] = field(init=False)  # variant -> its agent, if it is a built-in one
    sound: tuple[str, ...] = field(init=False)  # variants whose agents and tools can be made

    def __post_init__(self) -> None:
        self.agents, self.sound = self._make_agents()
        scales, faults = built_in_scales(self.suite)
        self.suite = self.suite.with_scales(scales)
        self.problems += faults

    @property
    def brings_code(self) -> bool:
        """Whether the suite has code of its own and no problems so far, so that the code can be checked."""
        return not self.problems and brings_any(self.suite, self.variants)

    def code_check(self) -> FromCodeCheck | None:
        """Checks the suite's own code in a process. Returns None if `brings_code` is False. May be called in a thread."""
        return check_code(self.suite, self.variants) if self.brings_code else None

    def finish(self, code: FromCodeCheck | None, checks: Sequence[SuiteCheck]) -> CompiledSuite:
        """Runs the checks and returns the compiled suite. Raises UnsoundSuite with all problems. `code` is the result of `code_check`."""
        if isinstance(code, NotLoaded):
            self.problems.append(code.reason.removeprefix(f"{self.suite.folder / SUITE_FILE}: "))
        elif code is not None:
            self.suite = self.suite.with_scales(code.scales)
        rules = self._rules()
        draft = SuiteDraft(self.suite, self.sound, self.agents, rules, datetime.now().astimezone().date())
        self.problems += [problem for check in checks for problem in check(draft)]
        if self.problems:
            raise UnsoundSuite(self.suite.folder / SUITE_FILE, [*dict.fromkeys(self.problems)], self.options)
        trials = self.options.trials or self.suite.trials
        return CompiledSuite(self.suite, self.variants, trials, dict(self.suite.thresholds), rules, self.agents, self.origins)

    def _make_agents(self) -> tuple[dict[str, Agent], tuple[str, ...]]:
        """Makes the built-in agent of each variant. Returns these agents, and the variants whose agent and tools have valid settings."""
        agents: dict[str, Agent] = {}
        sound: list[str] = []
        for variant in self.variants:
            settings = self.suite.agent_of(variant)
            try:
                tool_kind(self.suite.tools_of(variant))
                if not brings_code(settings, self.suite.folder):
                    agents[variant] = make_agent(settings, self.suite.folder)
                sound.append(variant)
            except ConfigError as error:
                self.problems.append(str(error))
        return agents, tuple(sound)

    def _rules(self) -> tuple[Rule, ...]:
        """Returns the parsed gate rules. Skips rules about scores whose scorers could not be loaded, because their scale is unknown."""
        suite, rules = self.suite, []
        undeclared = [score for score in suite.score_names if score not in suite.scales]
        passes = pass_threshold_of(suite.score_names, suite.thresholds, suite.scales) is not None
        for text in suite.gate:
            if undeclared and text.strip().startswith((*undeclared, PASS_RATES)):
                continue
            try:
                rules.append(parse_rule(text, suite.score_names, suite.scales, passes=passes))
            except ConfigError as error:
                self.problems.append(str(error))
        return tuple(rules)
