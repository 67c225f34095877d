"""Checks a suite before anything boots. Each check is a function that yields a sentence for each fault of one kind.

A new check is a function here and an entry in CHECKS. Plugins add checks with the entry-point group `pytest_agentbench.checks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import brings_code, code_place, is_black_box, needs_task
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Scale
from pytest_agentbench.sandbox.harbor_sandbox import check_sandbox
from pytest_agentbench.suites.suite import PoolSuite, Suite, quarantine_faults
from pytest_agentbench.tools import factory as tool_factory
from pytest_agentbench.tools.factory import answers_from, check_answers
from pytest_agentbench.tools.source import DecisionOnly

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pytest_agentbench.gate.rules import Rule

ENTRY_POINTS = "pytest_agentbench.checks"


@dataclass(frozen=True)
class SuiteDraft:
    """The input of all checks: a suite that was read but not checked yet."""

    suite: Suite  # with the scales that its scorers declare
    variants: tuple[str, ...]  # variants that run, without those whose agent or tools cannot be made
    agents: Mapping[str, Agent]  # variant -> its agent, if it is a built-in one with valid settings
    rules: tuple[Rule, ...]  # parsed from `gate`
    today: date


SuiteCheck = Callable[[SuiteDraft], Iterable[str]]


def unavailable_sandboxes(draft: SuiteDraft) -> Iterator[str]:
    """Yields a sentence for each kind of sandbox that the suite's tasks name and that is unknown or needs Harbor, which is missing."""
    for sandbox in sorted({each.task.sandbox for each in draft.suite.scenarios if each.task}):
        try:
            check_sandbox(sandbox)
        except ConfigError as error:
            yield str(error)


def isolated_agents_with_tasks(draft: SuiteDraft) -> Iterator[str]:
    """Yields a sentence for each agent that `isolation: process` would keep from the sandbox of its task."""
    suite = draft.suite
    task = next((each.id for each in suite.scenarios if each.task), None)
    if suite.isolation != "process" or task is None:
        return
    why = f"in a process for each rollout, which has no sandbox, and scenario {task!r} is a task; leave `isolation` out"
    for variant in draft.variants:
        if brings_code(suite.agent_of(variant), suite.folder):
            yield f"isolation: the agent {suite.agent_of(variant)['kind']!r} runs {why}"
        elif tool_factory.brings_code(suite.tools_of(variant)):
            yield f"isolation: the agent runs with the suite's tools {why}"


def answers_of_unknown_tools(draft: SuiteDraft) -> Iterator[str]:
    """Yields a sentence for each variant with a canned answer for a tool that no scenario has."""
    suite = draft.suite
    for variant in draft.variants:
        if isinstance(tool_factory.tool_kind(suite.tools_of(variant)), DecisionOnly) or all(each.tools for each in suite.scenarios):
            try:
                check_answers(answers_from(suite.answers_of(variant)), suite.scenarios)
            except ConfigError as error:
                yield str(error)


def agents_without_sandbox(draft: SuiteDraft) -> Iterator[str]:
    """Yields a sentence for each agent that works in a sandbox but gets none, and for each that would get two (task and `code_sandbox`)."""
    scenarios = draft.suite.scenarios
    task = next((each.id for each in scenarios if each.task), None)
    other = next((each.id for each in scenarios if each.task is None), None)
    for variant, agent in draft.agents.items():
        if other is not None and needs_task(agent):
            kind = draft.suite.agent_of(variant)["kind"]
            how = "use a data set of format harbor, or for an orchestrator set `code_sandbox: docker` or `code_sandbox: bubblewrap`"
            yield f"agent: {kind!r} works in a sandbox, and scenario {other!r} is not a task; {how}"
        elif task is not None and code_place(agent):
            yield f"agent: scenario {task!r} is a task and brings a sandbox; leave `code_sandbox` out, or set it to `task`"


def tools_without_callers(draft: SuiteDraft) -> Iterator[str]:
    """Yields sentences about `tools` and canned answers of variants whose built-in agent calls none of the suite's tools."""
    for variant, agent in draft.agents.items():
        yield from uncalled_tools(draft.suite, variant, agent)


def uncalled_tools(suite: PoolSuite, variant: str, agent: Agent) -> Iterator[str]:
    """Yields a sentence if a variant has `tools`, and one if it has canned answers, although its agent calls none of the suite's tools."""
    if not (is_black_box(agent) or needs_task(agent) or code_place(agent)):
        return
    calls_none = f"the agent {suite.agent_of(variant)['kind']!r} calls none of the suite's tools"
    if not isinstance(tool_factory.tool_kind(suite.tools_of(variant)), DecisionOnly):
        yield f"tools: {calls_none}; leave `tools` out"
    if suite.answers_of(variant):
        yield f"answers: {calls_none}; leave `answers` out"


def unmeasured_thresholds(draft: SuiteDraft) -> Iterator[str]:
    """Yields a sentence for each threshold of a score that no scorer of the suite measures."""
    for name in draft.suite.thresholds:
        if name.removesuffix(".mean") not in draft.suite.score_names:
            scores = f"{', '.join(draft.suite.score_names)} (and <score>.mean)"
            yield f"thresholds: {name!r} is not measured; scores of this suite: {scores}"


def quarantine(draft: SuiteDraft) -> Iterable[str]:
    """Yields a sentence for each quarantine entry that is duplicate, expired or names no scenario, and one for too many entries."""
    return quarantine_faults(draft.suite.quarantine, {each.id for each in draft.suite.scenarios}, draft.today)


def pointless_thresholds(draft: SuiteDraft) -> Iterable[str]:
    """Yields a sentence for each threshold of the suite that every score, or none, would reach."""
    return threshold_faults(draft.suite, draft.suite.thresholds)


def threshold_faults(suite: Suite, thresholds: Mapping[str, float]) -> Iterator[str]:
    """Yields a sentence for each threshold in `thresholds` (score -> value) that is outside the range of its score."""
    for name, threshold in thresholds.items():
        score = name.removesuffix(".mean")
        if not (scale := suite.scale(score)).contains(threshold):
            yield _out_of_range(f"the threshold {name}: {threshold:g}", score, scale)


def pointless_rules(draft: SuiteDraft) -> Iterator[str]:
    """Yields a sentence for each gate rule that every run, or none, would pass."""
    yield from filter(None, (rule_fault(draft.suite, rule) for rule in draft.rules))


def rule_fault(suite: Suite, rule: Rule) -> str:
    """Returns a sentence if a gate rule about a score has a threshold or a margin out of range, else an empty string."""
    if rule.kind != "score":
        return ""
    scale = suite.scale(rule.metric)
    if not rule.versus:
        return "" if scale.contains(rule.limit) else _out_of_range(f"the rule {rule.text!r}", rule.metric, scale)
    too_wide = scale.width is not None and rule.margin > scale.width
    return _out_of_range(f"the margin {rule.text!r}", rule.metric, scale) if too_wide else ""


def _out_of_range(what: str, score: str, scale: Scale) -> str:
    return f"{what} is out of range: {score} is {scale.range_text}, so it would decide nothing"


#: All built-in checks, in the order in which their sentences are shown.
CHECKS: tuple[SuiteCheck, ...] = (
    unavailable_sandboxes,
    isolated_agents_with_tasks,
    answers_of_unknown_tools,
    agents_without_sandbox,
    tools_without_callers,
    unmeasured_thresholds,
    quarantine,
    pointless_thresholds,
    pointless_rules,
)


def plugin_checks() -> list[SuiteCheck]:
    """Returns the checks of installed plugins. A check that cannot be loaded, or that raises, yields a sentence with its name."""
    from importlib.metadata import entry_points

    return [functools.partial(_problems_of, each) for each in entry_points(group=ENTRY_POINTS)]


def _problems_of(entry: EntryPoint, draft: SuiteDraft) -> list[str]:
    try:
        return [*entry.load()(draft)]
    except Exception as error:  # Code of a plugin may raise anything.
        return [f"the check {entry.name!r}, an entry point of {ENTRY_POINTS}, failed: {type(error).__name__}: {error}"]
