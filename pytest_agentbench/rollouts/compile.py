"""Compiles a suite: its folder is read once, its rules are parsed once, and everything about it is checked, before anything boots."""

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

PASS_RATES = "pass"  # begins rules such as `pass^3 >= 0.7`, which depend on the main score
MOST = 10  # problems of a suite that are told


@dataclass(frozen=True)
class CompileOptions:
    """Options of a command line that change a suite or choose its variants."""

    changes: Sequence[tuple[str, Any]] = ()  # (dotted path, value)
    agent: str | None = None  # in the place of the suite's own
    variants: Sequence[str] = (arms_of.DEFAULT,)
    arms: Sequence[Arm] = ()  # arms of an A/B session
    trials: int | None = None

    def explain(self, faults: str, file: Path) -> str:
        """Returns lines about a suite.yaml, followed by the options that have changed it, without their values."""
        options = [*(["--agentbench-agent"] if self.agent else []), *(f"--agentbench-set {name}" for name, _ in self.changes)]
        about = f"\n{file}: all of this is about the file" if "\n" in faults else ""
        return f"{faults}{about} (as changed by {', '.join(options)})" if options else faults


AS_IT_IS = CompileOptions()


@dataclass(frozen=True)
class CompiledSuite:
    """A sound suite with everything that a session derives from its folder. Nothing is parsed again later."""

    suite: Suite  # with the scales that its scorers declare
    variants: tuple[str, ...]  # variants that run; in an A/B session one for each variant and arm
    trials: int
    thresholds: Mapping[str, float]  # in force
    rules: tuple[Rule, ...] = ()  # parsed from `gate`
    agents: Mapping[str, Agent] = field(default_factory=dict)  # variant -> its agent, if it is a built-in one
    origins: Mapping[str, VariantOrigin] = field(default_factory=dict)  # in an A/B session: variant -> the suite's own, and the arm

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.suite.name

    @property
    def folder(self) -> Path:
        """The suite's folder."""
        return self.suite.folder


class UnsoundSuite(ConfigError):
    """A suite that cannot run: a line for each of its problems, the first MOST of them."""

    def __init__(self, file: Path, problems: Sequence[str], options: CompileOptions) -> None:
        """`problems` do not name the file; `options` may have changed it."""
        lines = [f"{file}: {problem}" for problem in problems[:MOST]]
        if more := len(problems) - MOST if len(problems) > MOST else 0:
            lines.append(f"{file}: and {more} more problem{'s' * (more > 1)}")
        super().__init__(options.explain("\n".join(lines), file))


def compile_suite(text: SuiteText, options: CompileOptions = AS_IT_IS) -> CompiledSuite:
    """Reads and checks the suite of a suite.yaml that has been parsed.

    Code that the suite brings is imported in a process of its own. Raises UnsoundSuite with all problems, and MissingData if the data
    are not on this machine.
    """
    return _finished(_read(text, options))


def compile_all(texts: Iterable[tuple[SuiteText, CompileOptions]]) -> list[CompiledSuite | ConfigError]:
    """Compiles several suites as `compile_suite` does; the error of a suite takes its place. Their code is checked side by side."""
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
    """Checks a suite that was read; raises UnsoundSuite as `compile_suite` does."""
    return _finished(_Reading(suite, tuple(variants), {}, AS_IT_IS, []))


def _finished(reading: _Reading) -> CompiledSuite:
    return reading.finish(reading.code_check(), (*CHECKS, *plugin_checks()))


def _read(text: SuiteText, options: CompileOptions) -> _Reading:
    """Reads a suite with its data, and with the arms of a session; raises ConfigError if there is no suite to speak of then."""
    try:
        suite = read_suite(text, options.changes, options.agent)
        if faults := [*keys_in_names((suite.name, *suite.variants), suite.scenarios)]:  # Sentences about other faults would tell the key.
            raise UnsoundSuite(text.file, faults, options)
        problems, variants = _chosen(suite, options.variants)
        origins: Mapping[str, VariantOrigin] = {}
        if options.arms:
            origins = arms_of.origins(variants, options.arms)
            suite, variants = arms_of.in_arms(suite, variants, options.arms)
    except (MissingData, UnsoundSuite):
        raise
    except ConfigError as error:
        raise ConfigError(options.explain(str(error), text.file)) from error
    return _Reading(suite, variants, origins, options, problems)


def _chosen(suite: Suite, names: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Returns a sentence for each name that is none of a variant, and the variants to run."""
    every = (arms_of.DEFAULT, *suite.variants)
    if tuple(names) == ("all",):
        return [], every
    unknown = [f"{unknown_name('variant', name, every)}, or `all`" for name in names if name not in every]
    return unknown, tuple(name for name in names if name in every)


@dataclass
class _Reading:
    """A suite that was read, and the problems that have been found in it."""

    suite: Suite
    variants: tuple[str, ...]
    origins: Mapping[str, VariantOrigin]
    options: CompileOptions
    problems: list[str]
    agents: dict[str, Agent] = field(init=False)  # variant -> its agent, if it is a built-in one
    sound: tuple[str, ...] = field(init=False)  # variants whose agents and tools can be made

    def __post_init__(self) -> None:
        self.agents, self.sound = self._made()
        scales, faults = built_in_scales(self.suite)
        self.suite = self.suite.with_scales(scales)
        self.problems += faults

    @property
    def brings_code(self) -> bool:
        """Whether the suite has code of its own that can be checked, because all names in its settings are known."""
        return not self.problems and brings_any(self.suite, self.variants)

    def code_check(self) -> FromCodeCheck | None:
        """Checks the suite's own code; returns None if it has none. May be called in a thread."""
        return check_code(self.suite, self.variants) if self.brings_code else None

    def finish(self, code: FromCodeCheck | None, checks: Sequence[SuiteCheck]) -> CompiledSuite:
        """Checks the suite, with the result for its code, and returns it compiled; raises UnsoundSuite with all problems."""
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

    def _made(self) -> tuple[dict[str, Agent], tuple[str, ...]]:
        """Makes the agents that are built-in ones, and looks at the tools. Returns the agents, and the variants without a fault."""
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
        """Parses the rules of the suite's gate, without those about a score whose scorer cannot be asked what it declares."""
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
