"""`python -m benchmarks [name ...]`: runs benchmarks and prints each measured figure next to its target.

The exit status is 1 only if a benchmark failed, or if a figure misses its target by so much that something must be broken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import (
    codec,
    collection,
    contexts,
    conversations,
    endurance,
    frame,
    import_time,
    makespan,
    one_process,
    quickack,
    readers,
    redaction,
    reports,
    resume,
    sandbox,
    stack,
    tables,
    workers,
)
from benchmarks.hints import benchmark as hints
from benchmarks.measurement import BenchmarkError, BenchmarkSkipped, Options, Result, Surroundings
from benchmarks.nodes import benchmark as nodes
from benchmarks.optimizing import benchmark as optimizing
from benchmarks.pressure import benchmark as pressure
from benchmarks.timing import benchmark as timing
from benchmarks.verdicts import benchmark as verdicts
from benchmarks.verdicts import real as verdicts_real
from pytest_agentbench.errors import unknown_name

BENCHMARKS: Mapping[str, Callable[[Options], Result]] = {
    "import": import_time.measure,
    "one_process": one_process.measure,
    "collect": collection.measure,
    "redact": redaction.measure,
    "conversations": conversations.measure,
    "codec": codec.measure,
    "makespan": makespan.measure,
    "readers": readers.measure,
    "workers": workers.measure,
    "endurance": endurance.measure,
    "resume": resume.measure,
    "tables": tables.measure,
    "frame": frame.measure,
    "reports": reports.measure,
    "nodes": nodes.measure,
    "timing": timing.measure,
    "quickack": quickack.measure,
    "sandbox": sandbox.measure,
    "stack": stack.measure,
    "contexts": contexts.measure,
    "pressure": pressure.measure,
    "hints": hints.measure,
    "verdicts": verdicts.measure,
    "optimizing": optimizing.measure,
    "verdicts_real": verdicts_real.measure,
}
WIDTHS = (26, 44, 18, 6)  # characters of the table's columns


def main() -> int:
    arguments = parse()
    if arguments.list:
        print("\n".join(str(sys.modules[measure.__module__].__doc__).strip() for measure in BENCHMARKS.values()))
        return 0
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    options = Options(arguments.repeat, arguments.quick, tuple(arguments.streams), arguments.table)
    found: dict[str, Result] = {}
    broken = []
    for name in arguments.names or BENCHMARKS:
        surroundings = Surroundings()
        try:
            found[name] = BENCHMARKS[name](options)
        except BenchmarkSkipped as why:
            print(f"\n{name} is SKIPPED: {why}", flush=True)
        except BenchmarkError as error:
            broken.append(name)
            print(f"\n{name} is BROKEN: {error}", flush=True)
        else:
            show(found[name], str(surroundings))
    if arguments.json:
        arguments.json.write_text(json.dumps({name: result.to_dict() for name, result in found.items()}, indent=2) + "\n")
    return 1 if broken or any(result.gross for result in found.values()) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="names of benchmarks (default: all)")
    parser.add_argument("--list", action="store_true", help="print what each benchmark measures, and exit")
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="number of runs of each setting under comparison; verdicts_real: runs without a change"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="measure less: tables without a million calls, nodes with two node workers and no long session, pressure and hints with two "
        "blocks of each arm, timing with 48 plain streams (under a minute), verdicts (three minutes), verdicts_real (under a minute)",
    )
    parser.add_argument("--streams", type=int, nargs="+", default=(), metavar="N", help="timing: numbers of concurrent streams")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="hints, nodes, optimizing, pressure, timing, verdicts, verdicts_real: also write the table to this file, as Markdown",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file, as JSON")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(unknown_name("benchmark", name, BENCHMARKS))
    return arguments


def show(result: Result, circumstances: str) -> None:
    """Prints the figures of a benchmark as a table, then notes on them and on the load of the machine."""
    print(f"\n{result.table}\n" if result.table else "")
    for figure in result.figures:
        print("  ".join(text.ljust(width) for text, width in zip(figure.columns, WIDTHS, strict=True)).rstrip())
    for note in (*result.notes, circumstances):
        print(f"    {note}")
    for sentence in result.gross:
        print(f"    BROKEN: {sentence}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
