"""`agentbench import nat-config`: converts a configuration of the NeMo Agent Toolkit to a suite and a backend."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

NAT_CONFIG = "nat-config"

#: Options of the command that are only for configurations, as attributes of the parsed options.
OPTIONS = ("data", "tools", "input", "output")


def add_options(parser: Any) -> None:
    """Adds the options for configurations to the parser of `agentbench import`."""
    group = parser.add_argument_group(f"options of {NAT_CONFIG}")
    group.add_argument("--data", type=Path, metavar="FILE", help="data in place of eval.general.dataset.file_path")
    group.add_argument("--tools", type=Path, metavar="FILE", help="a tools.json in place of the file that the configuration names")
    group.add_argument("--input", action="append", metavar="TEXT", help="a question in place of data; may be repeated")
    group.add_argument("--output", type=Path, metavar="DIR", help="folder to write (default: scenarios/NAME, with the file's name)")


def run_nat_config(options: argparse.Namespace) -> None:
    """Converts a configuration. Prints the keys that are not carried over, and the commands that run the suite."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.exports.nat_config.convert import convert, write
    from pytest_agentbench.exports.nat_config.data import NatInputs

    if not options.path.is_file():
        raise ConfigError(f"{options.path} is not a file; pass a configuration of the NeMo Agent Toolkit, such as config.yml")
    if options.suite:
        raise ConfigError("--suite is an option for results; remove it")
    if options.data and options.input:
        raise ConfigError("--data and --input are both given; remove one of them")
    converted = convert(options.path, NatInputs(options.data, options.tools, options.input or ()))
    folder = options.output or Path("scenarios", converted.name)
    write(converted, folder)
    for reason, paths in converted.reasons.items():
        print(f"not carried over: {', '.join(paths)}: {reason}")
    search = converted.search_command(folder)
    if converted.study:
        print(f"note: {converted.study.sentence}{'' if search else '; none of it is carried over'}")
    print(f"wrote {folder}: {', '.join(converted.files)}")
    print(f"now run: {converted.command(folder)}")
    if search:
        print(f"and search better settings: {search}")
