"""What went wrong, for people: kinds of mistakes with examples, which tool instead of which, the tools with the most mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_agentbench.reports.markup import code, table
from pytest_agentbench.reports.words import percent
from pytest_agentbench.runs.results import Passes
from pytest_agentbench.runs.triage import Confusion, ToolMistakes, Triage
from pytest_agentbench.scorers.mistakes import KINDS


def markdown(triage: Triage | None) -> Iterator[str]:
    """The section of report.md; nothing where nothing went wrong."""
    if triage is None or not triage.faulty:
        return
    yield f"\n### What went wrong\n\n{faulty_text(triage)}.\n"
    yield from table(
        ["mistake", "rollouts", "what it is", "for example"],
        [
            [
                each.kind,
                f"{each.rollouts}, {percent(each.rollouts / triage.rollouts)}",
                KINDS[each.kind],
                _example(each.examples, each.detail),
            ]
            for each in triage.kinds
        ],
    )
    if triage.confused:
        yield "\n### Which tool instead of which\n"
        yield from table(
            ["expected", "called", "rollouts"], [[code(each.expected), code(each.actual), str(each.rollouts)] for each in triage.confused]
        )
    if triage.tools:
        yield "\n### Tools with the most mistakes\n"
        head = ["tool", "rollouts that expect it", "did not call it", "called it unasked", "wrong arguments"]
        yield from table(head, [[code(each.tool), *map(str, _counts(each))] for each in triage.tools])


def _example(ids: tuple[str, ...], detail: str) -> str:
    return f"{', '.join(map(code, ids))}: {code(detail)}" if detail else ", ".join(map(code, ids))


def _counts(tool: ToolMistakes) -> tuple[int, int, int, int]:
    return tool.expected, tool.missing, tool.unexpected, tool.bad_arguments


def faulty_text(triage: Triage) -> str:
    """`63 of 100 rollouts have a mistake, some of them several`."""
    some = ", some of them several" if sum(each.rollouts for each in triage.kinds) > triage.faulty else ""
    return f"{triage.faulty} of {triage.rollouts} rollouts ha{'s' if triage.faulty == 1 else 've'} a mistake{some}"


def kinds_text(triage: Triage) -> str:
    """`missing call 40, bad argument 31, wrong tool 12`."""
    return ", ".join(f"{each.kind} {each.rollouts}" for each in triage.kinds)


def confusion_text(confusion: Confusion, name: Callable[[str], str] = str) -> str:
    """`get_balance instead of get_history 7 times`; `name` writes the name of a tool."""
    times = f"{confusion.rollouts} times" if confusion.rollouts > 1 else "once"
    return f"{name(confusion.actual)} instead of {name(confusion.expected)} {times}"


def tool_text(tool: ToolMistakes, name: Callable[[str], str]) -> str:
    """`get_balance, which 31 of 40 rollouts did not call, 2 called unasked, 5 gave wrong arguments`; `name` writes the name of a tool."""
    parts = [f"{tool.missing} of {tool.expected} rollouts did not call"] * bool(tool.missing)
    parts += [f"{tool.unexpected} called unasked"] * bool(tool.unexpected)
    parts += [f"{tool.bad_arguments} gave wrong arguments"] * bool(tool.bad_arguments)
    return f"{name(tool.tool)}, which {', '.join(parts)}"


def flips(passes: Passes | None) -> list[str]:
    """Scenarios of which some trials passed and some did not, those nearest to a coin's toss first."""
    mixed = [each for each in (passes.scenarios if passes else ()) if each.passed]
    return [each.scenario for each in sorted(mixed, key=lambda each: (abs(each.passed / each.trials - 0.5), each.scenario))]
