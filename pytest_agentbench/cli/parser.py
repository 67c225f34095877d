"""How the command line of `agentbench` is read. A mistake has the exit status that pytest gives to a wrong option.

Words that name runs are read here, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_agentbench.errors import ConfigError

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A parser of arguments; those of its commands are of this class too."""

    passes_on = False  # whether what stands behind `--` is another program's

    def commands(self, title: str = "commands") -> Any:
        """Where commands are added. Without one the help goes to stderr and it is a mistake: a script that lost a word fails."""
        self.set_defaults(run=self._help)
        return self.add_subparsers(title=title, metavar="COMMAND")

    def takes_run(self) -> None:
        """The argument RUN, as `options.name`."""
        about = "a run directory, or its name in reports/ (default: latest)"
        self.add_argument("name", nargs="?", default="latest", metavar="RUN", help=about)

    def takes_reports(self) -> None:
        """The option --reports, as `options.reports`."""
        self.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where runs are (default: reports)")

    def takes_rest(self) -> None:
        """What stands behind `--`, as `options.rest`, for the program that the command starts."""
        self.passes_on = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        words = [*(sys.argv[1:] if args is None else args)]
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


def option(read: Callable[[str], T], *, whole: bool = False) -> Callable[[str], T]:
    """A reader for argparse of what a ValueError says of a text: what it should be, or, where it is `whole`, all of it."""

    def value(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}" if whole else f"{text!r} should be {error}") from error

    return value


def runs_of(name: str, reports: Path) -> Iterator[Path]:
    """The run of a name, or all finished runs of a directory that is none itself, the oldest first; raises ConfigError."""
    from pytest_agentbench.runs.run_file import FILE, find_run

    inside: Sequence[Path] = sorted(file.parent for file in Path(name).glob(f"*/{FILE}") if not file.parent.is_symlink())
    if inside and not (Path(name) / FILE).exists():
        yield from inside
    else:
        yield find_run(name, reports)
