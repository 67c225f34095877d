"""How the command line of `agentbench` is read: a mistake in it has the exit status that pytest gives to a wrong option."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from pytest_agentbench.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """A parser of arguments; those of its commands are of this class too."""

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

    def _help(self, _options: argparse.Namespace) -> int:
        self.print_help(sys.stderr)
        return ConfigError.exit_status

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ConfigError.exit_status, f"{self.prog}: {message}; see {self.prog} --help\n")
