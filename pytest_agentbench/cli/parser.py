"""The command-line parser of `agentbench`, based on argparse. Wrong arguments lead to the exit status that pytest uses for them.

`runs_of` finds the runs that an argument names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_agentbench.errors import ConfigError, did_you_mean, unknown_name

T = TypeVar("T")

RUN_HELP = "a run directory, or its name in reports/ (default: latest)"


class Parser(argparse.ArgumentParser):
    """An argparse parser that groups commands in its help, shows an example, and suggests names for misspelt ones.

    Args:
        example: A command line that is shown at the end of the help.
    """

    passes_on = False  # whether the arguments after `--` are for another program

    def __init__(self, *, example: str = "", **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._example = example
        self._commands: Commands | None = None

    def commands(self, title: str = "commands", groups: Mapping[str, Collection[str]] | None = None) -> Commands:
        """Makes the parser require a command. Returns the object to which commands are added.

        The help lists the commands under `title`, or in `groups` (title -> names). A command line without a command prints the help on
        stderr and has the exit status of wrong arguments, so that a script with a missing word fails.
        """
        self.set_defaults(run=self._help)
        added = self.add_subparsers(metavar="COMMAND", help=argparse.SUPPRESS, prog=self.prog, parser_class=CommandParser)
        self.usage = f"{self.prog} [-h] COMMAND ..."
        self._commands = Commands(added, title, groups or {})
        return self._commands

    def format_help(self) -> str:
        """Returns the help, including the groups of commands and the example, which argparse does not support."""
        groups = self._commands.listed() if self._commands else ()
        examples = [f"example:\n  {self._example}"] if self._example else []
        self.epilog = "\n\n".join([*groups, *examples]) or None
        return super().format_help()

    def takes_run(self) -> None:
        """Adds the argument RUN, as `options.name`."""
        self.add_argument("name", nargs="?", default="latest", metavar="RUN", help=RUN_HELP)

    def takes_reports(self) -> None:
        """Adds the option --reports, as `options.reports`."""
        self.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="directory of the runs (default: reports)")

    def takes_rest(self) -> None:
        """Accepts arguments after `--`, as `options.rest`. The command passes them to the program that it starts."""
        self.passes_on = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        words = [*(sys.argv[1:] if args is None else args)]
        name = next((word for word in words if not word.startswith("-")), "")
        if self._commands and name and name not in self._commands.lines:
            self.error(unknown_name("command", name, self._commands.lines))
        if not self.passes_on:
            return super().parse_known_args(words, namespace)
        end = words.index("--") if "--" in words else len(words)
        options, unknown = super().parse_known_args(words[:end], namespace)
        options.rest = words[end + 1 :]
        return options, unknown

    def _help(self, _options: argparse.Namespace) -> int:
        self.print_help(sys.stderr)
        return ConfigError.exit_status

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ConfigError.exit_status, f"{self.prog}: {message}; see {self.prog} --help\n")


class CommandParser(Parser):
    """The parser of one command, such as `agentbench show`. It rejects unknown arguments itself, so that the error shows its own usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [each for action in self._actions for each in action.option_strings]
            shown = (f"{word}{did_you_mean(word.partition('=')[0], flags) if word.startswith('-') else ''}" for word in unknown)
            self.error(f"unrecognized arguments: {' '.join(shown)}")
        return options, unknown


class Commands:
    """The commands of a parser, in the order in which they were added. `lines` has the description of each, by name."""

    def __init__(self, parsers: Any, title: str, groups: Mapping[str, Collection[str]]) -> None:
        self._parsers, self._title, self._groups = parsers, title, groups
        self.lines: dict[str, str] = {}

    def add_parser(self, name: str, *, help: str, description: str = "", example: str = "") -> Any:
        """Adds a command and returns its parser. `help` is the line in the list of commands, and begins the help of the command itself."""
        self.lines[name] = help
        return self._parsers.add_parser(name, description=". ".join(filter(None, (help, description))), example=example)

    def listed(self) -> Iterator[str]:
        """Yields each group of commands as text: the title, then a line for each command."""
        width = max(map(len, self.lines))
        for title, names in (self._groups or {self._title: self.lines}).items():
            yield "\n".join([f"{title}:", *(f"  {name:{width}}  {self.lines[name]}" for name in names)])


def option(read: Callable[[str], T], *, whole: bool = False) -> Callable[[str], T]:
    """Returns a function for argparse that reads a value with `read`, and converts its ValueError to an error of argparse.

    The ValueError says what the value must be, such as `a time above 0`. With `whole`, it contains the verb: `must be a time above 0`.
    """

    def value(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}" if whole else f"{text!r} must be {error}") from error

    return value


def runs_of(name: str, reports: Path) -> Iterator[Path]:
    """Yields the directory of the run with a name, or of all finished runs in a directory of runs. Raises ConfigError if there is none."""
    from pytest_agentbench.runs.run_file import FILE, find_run

    inside: Sequence[Path] = sorted(file.parent for file in Path(name).glob(f"*/{FILE}") if not file.parent.is_symlink())
    if inside and not (Path(name) / FILE).exists():
        yield from inside
    else:
        yield find_run(name, reports)
