"""`python -m benchmarks.reference compare|accept|make|again [NAME ...]`; README.md says what each does."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.reference.differences import differences
from benchmarks.reference.origins import id_of, run_of
from benchmarks.reference.sessions import MADE
from benchmarks.reference.store import EXPECTED, INPUTS, Files, archive_of, below, read_archive, stored, under, unpack, write_archive
from benchmarks.reference.views import views
from benchmarks.reference.workplace import workplace
from pytest_agentbench.errors import unknown_name
from pytest_agentbench.runs.run_file import FILE as RUN


def main() -> int:
    os.environ["TZ"] = "UTC"  # reports name times of this machine
    time.tzset()
    arguments = parse()
    return COMMANDS[arguments.command](arguments.names)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reference", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which runs (default: all)")
    arguments = parser.parse_args()
    known = [*MADE] if arguments.command == "make" else stored()
    for name in arguments.names:
        if name not in known:
            parser.error(unknown_name("reference run", name, known))
    arguments.names = arguments.names or known
    return arguments


def compare(names: Sequence[str]) -> int:
    """Prints what the present code makes otherwise than it is stored; 1 if there is anything."""
    differing = 0
    for name in names:
        files = read_archive(archive_of(name))
        lines = [*differences(name, below(EXPECTED, files), made_of(below(INPUTS, files)))]
        differing += bool(lines)
        for line in lines:
            print(line)
    print(f"{len(names)} run{'s' * (len(names) != 1)}, {f'{differing} differ' if differing else 'equal'}")
    return min(differing, 1)


def accept(names: Sequence[str]) -> int:
    """Stores what the present code makes."""
    for name in names:
        store(name, below(INPUTS, read_archive(archive_of(name))))
    return 0


def make(names: Sequence[str]) -> int:
    """Runs the sessions, and stores what they leave and what the present code makes of it.

    Prints where that is not what the session itself wrote into its run.json; 1 if there is such a place.
    """
    differing = 0
    for name in names:
        with workplace() as place:
            leaves = MADE[name](place)
            if not isinstance(leaves, Path):
                store(name, leaves)
                continue
            made = store(name, place.inputs(leaves))
            lines = [*differences(name, {RUN: place.run_json(leaves)}, {RUN: made[RUN]})]
        differing += bool(lines)
        for line in lines:
            print(line)
    return min(differing, 1)


def store(name: str, inputs: Files) -> Files:
    """Writes the archive of a run; returns the files that were made of its inputs."""
    path, made = archive_of(name), made_of(inputs)
    write_archive(path, {**under(INPUTS, inputs), **under(EXPECTED, made)})
    print(f"wrote {os.path.relpath(path)}, {path.stat().st_size:,} bytes")
    return made


def made_of(inputs: Files) -> dict[str, bytes]:
    """Returns the files that the present code makes of the inputs of a run."""
    with tempfile.TemporaryDirectory(prefix="agentbench-reference-") as name:
        directory = Path(name) / id_of(inputs)
        unpack(inputs, directory)
        return views(run_of(directory), directory)


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {"compare": compare, "accept": accept, "make": make}

if __name__ == "__main__":
    sys.exit(main())
