"""`python -m benchmarks.reference compare|accept|make|again [NAME ...]`: checks or renews the reference runs. See README.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.reference.again import comparable
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
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of reference runs (default: all)")
    arguments = parser.parse_args()
    known = [*MADE] if arguments.command == "make" else stored()
    for name in arguments.names:
        if name not in known:
            parser.error(unknown_name("reference run", name, known))
    arguments.names = arguments.names or known
    return arguments


def compare(names: Sequence[str]) -> int:
    """Prints the differences between the stored files and those of the present code. Returns 1 if there are any, otherwise 0."""
    differing = 0
    for name in names:
        files = read_archive(archive_of(name))
        lines = [*differences(name, below(EXPECTED, files), made_of(below(INPUTS, files)))]
        differing += bool(lines)
        for line in lines:
            print(line)
    print(summary(names, differing))
    return min(differing, 1)


def summary(names: Sequence[str], differing: int) -> str:
    return f"{len(names)} run{'s' * (len(names) != 1)}, {f'{differing} differ' if differing else 'equal'}"


def told(name: str) -> str:
    path = archive_of(name)
    return f"wrote {os.path.relpath(path)}, {path.stat().st_size:,} bytes"


def accept(names: Sequence[str]) -> int:
    """Replaces the stored files by those that the present code makes from the stored inputs. Returns 0."""
    for name in names:
        inputs = below(INPUTS, read_archive(archive_of(name)))
        write_archive(archive_of(name), {**under(INPUTS, inputs), **under(EXPECTED, made_of(inputs))})
        print(told(name))
    return 0


def make(names: Sequence[str]) -> int:
    """Runs the sessions, and stores their inputs (such as the journal) and the files that the present code makes from these.

    Prints differences from the run.json that the session wrote. Returns 1 if there are any, otherwise 0.
    """
    wrong = 0
    for name in names:
        files, lines = made_anew(name)
        wrong += bool(lines)
        write_archive(archive_of(name), files)
        print("\n".join([*lines, told(name)]))
    return min(wrong, 1)


def again(names: Sequence[str]) -> int:
    """Runs the sessions, and prints differences from the stored runs, except in times and ids. Returns 1 if there are any, otherwise 0."""
    differing = 0
    for name in names:
        files, _ = made_anew(name)
        lines = [*differences(name, comparable(read_archive(archive_of(name))), comparable(files))]
        differing += bool(lines)
        for line in lines:
            print(line)
    print(summary(names, differing))
    return min(differing, 1)


def made_anew(name: str) -> tuple[Files, list[str]]:
    """Makes a reference run again. Returns the files for its archive, and differences from the run.json that its session wrote."""
    with workplace() as place:
        leaves = MADE[name](place)
        inputs = place.inputs(leaves) if isinstance(leaves, Path) else leaves
        own = {RUN: place.run_json(leaves)} if isinstance(leaves, Path) else {}
    made = made_of(inputs)
    files = {**under(INPUTS, inputs), **under(EXPECTED, made)}
    return files, [*differences(name, own, {file: made[file] for file in own})]


def made_of(inputs: Files) -> dict[str, bytes]:
    """Returns the files that the present code makes from the stored inputs of a run."""
    with tempfile.TemporaryDirectory(prefix="agentbench-reference-") as name:
        directory = Path(name) / id_of(inputs)
        unpack(inputs, directory)
        return views(run_of(directory), directory)


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {"compare": compare, "accept": accept, "make": make, "again": again}

if __name__ == "__main__":
    sys.exit(main())
