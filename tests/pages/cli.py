"""The sections of docs/reference/cli.md, from the parser of `agentbench`: usage, help, arguments and options of each command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping

from pytest_agentbench.cli import GROUPS, parser
from pytest_agentbench.cli.parser import Parser
from tests.pages.markdown import prose, table_row

DEFAULT = re.compile(r" ?\(default( for one run)?: ((?:[^()]|\([^()]*\))*)\)")  # in a help text; it may contain parentheses

#: Command -> page that shows how it is used. The page of a command is that of its subcommands, too.
GUIDES: Mapping[str, str] = {
    "init": "suites.md",
    "doctor": "prepare.md",
    "download": "suites.md",
    "subset": "suites.md",
    "show": "report.md",
    "report": "report.md",
    "watch": "report.md",
    "plot": "plots.md",
    "trend": "trend.md",
    "compare": "compare.md",
    "sweep": "sweep.md",
    "optimize": "optimize.md",
    "what-if": "what-if.md",
    "reproduce": "reproduce.md",
    "gate": "gates.md",
    "baseline": "baselines.md",
    "calibrate": "baselines.md",
    "power": "baselines.md",
    "rescore": "scorers.md#score-a-run-again",
    "backend": "stacks.md",
    "cleanup": "prepare.md",
    "env": "prepare.md",
    "weights": "prepare.md",
    "cassette": "recordings.md",
    "hints": "hints.md",
    "retriever": "retriever.md",
    "worker": "nodes.md",
    "dry-run": "services-on-clusters.md",
    "import": "import.md",
    "export": "export.md",
    "share": "export.md#one-archive-for-another-person",
    "schema": "run-json.md",
    "scrub": "security.md",
    "version": "stability.md",
}


def command_list() -> Iterator[str]:
    """Yields a table of all commands in the groups of the help, each linked to its section."""
    commands = parser()._commands
    assert commands is not None
    yield from ("| group | command | is |", "|---|---|---|")
    for group, names in GROUPS.items():
        yield from (table_row(group, f"[`{name}`](#agentbench-{name})", commands.lines[name]) for name in names)


def command_sections() -> Iterator[str]:
    """Yields the sections of all commands, with those of subcommands below their command."""
    for name, each in _commands(parser()):
        yield from _section(each, "##")
        for _, inner in _commands(each):
            yield from _section(inner, "###")
        yield from (f"Guide: [{GUIDES[name].partition('.')[0]}]({GUIDES[name]})", "")


def _subparsers(of: Parser) -> list[argparse._SubParsersAction[Parser]]:
    return [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]


def _commands(of: Parser) -> list[tuple[str, Parser]]:
    return [pair for action in _subparsers(of) for pair in action.choices.items()]


def _section(command: Parser, level: str) -> Iterator[str]:
    shown = [action for action in command._actions if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)]
    yield from (f"{level} {command.prog}", "", f"{prose(command.description or '').rstrip('.')}.", "", "```text", usage(command), "```", "")
    if shown:
        yield from ("| argument | default | is |", "|---|---|---|", *map(_row, shown), "")
    for group in command._mutually_exclusive_groups:
        yield from (f"Only one of {_listed(f'`{action.option_strings[-1]}`' for action in group._group_actions)} can be given.", "")
    if command._example:
        yield from (f"Example: `{command._example}`", "")


def _listed(words: Iterator[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}"


def usage(command: Parser) -> str:
    """Returns the usage of a command on one line, without options that are not required. It is the same for all versions of Python."""
    if _subparsers(command):
        return f"{command.prog} COMMAND ..."
    options = [action for action in command._actions if action.option_strings and not isinstance(action, argparse._HelpAction)]
    words = [_flag(action) for action in options if action.required]
    words += ["[OPTIONS]"] * any(not action.required for action in options)
    words += [_positional(action) for action in command._actions if not action.option_strings]
    words += ["[-- ARGUMENTS]"] * command.passes_on
    return " ".join([command.prog, *words])


def _value(action: argparse.Action) -> str:
    """Returns the name of an argument's value."""
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(action.choices) if action.choices and action.option_strings else action.dest.upper()


def _positional(action: argparse.Action) -> str:
    name = _value(action)
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name)


def _flag(action: argparse.Action) -> str:
    value = f"{_value(action)} [...]" if action.nargs == "+" else _value(action)
    return action.option_strings[-1] if action.nargs == 0 else f"{action.option_strings[-1]} {value}"


def _row(action: argparse.Action) -> str:
    names = [*action.option_strings[:-1], _flag(action)] if action.option_strings else [_positional(action)]
    about, default = _parts(action)
    repeated = "; can be given several times" if isinstance(action, argparse._AppendAction) and "repeated" not in about else ""
    cells = [", ".join(f"`{name}`" for name in names), default, f"{about}{repeated}"]
    return table_row(*cells)


def _parts(action: argparse.Action) -> tuple[str, str]:
    """Returns what an argument is, and its default. The help states defaults in parentheses."""
    text = action.help or ""
    if found := DEFAULT.search(text):
        return f"{text[: found.start()]}{text[found.end() :]}", f"{found[2]}{found[1] or ''}"
    return text, "required" if action.required and action.nargs != "*" else ""


def unstated() -> list[str]:
    """Returns the options whose help does not state their default."""
    commands = [each for _, command in _commands(parser()) for each in (command, *(inner for _, inner in _commands(command)))]
    empty: tuple[object, ...] = (None, False, argparse.SUPPRESS, [], (), {}, "")
    return [
        f"{command.prog} {_flag(action) if action.option_strings else _value(action)}"
        for command in commands
        for action in command._actions
        if action.default not in empty and not DEFAULT.search(action.help or "")
    ]
