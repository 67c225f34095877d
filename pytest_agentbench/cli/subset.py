"""`agentbench subset`: writes a few scenarios of a data file to a new file."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    parser = commands.add_parser(
        "subset",
        help="Write a few scenarios of a data file to a new file",
        example="agentbench subset data/banking.json few.json --limit 10 --seed 1",
    )
    parser.add_argument("input", type=Path, metavar="INPUT", help="the data file")
    parser.add_argument(
        "output", type=Path, metavar="OUTPUT", help="the new file; JSON lines if its name ends in .jsonl, otherwise a JSON list"
    )
    parser.add_argument("--limit", type=int, default=3, metavar="N", help="number of scenarios (default: 3)")
    parser.add_argument("--seed", type=int, help="take a random sample with this seed (default: take the first scenarios)")
    parser.set_defaults(run=run_subset)


def run_subset(options: argparse.Namespace) -> None:
    written = subset(options.input, options.output, options.limit, options.seed)
    print(f"wrote {written} scenarios to {options.output}")


def subset(source: Path, output: Path, limit: int, seed: int | None = None) -> int:
    """Writes some scenarios of a data file to a new file, unchanged and in the same order. Returns their number, at most `limit`.

    Without a seed these are the first scenarios, with a seed a random sample. Files that end in .jsonl contain JSON lines, others a JSON
    list. A shared `tools.json` is not copied. Raises ConfigError if a file cannot be read or written.
    """
    from pytest_agentbench.suites.datasets.agent_leaderboard import entries

    if limit < 1:
        raise ConfigError(f"{source}: the number of scenarios must be at least 1, not {limit}")
    _check_output(source, output)
    everything = [entry for _, entry in entries(source)]
    if not everything:
        raise ConfigError(f"{source}: contains no scenarios; name another file")
    count = min(limit, len(everything))
    positions = range(count) if seed is None else sorted(random.Random(seed).sample(range(len(everything)), count))
    _write(output, [everything[position] for position in positions])
    return count


def _check_output(source: Path, output: Path) -> None:
    """Raises ConfigError if the folder of the output does not exist, or if the output is the input file."""
    if not output.parent.is_dir():
        raise ConfigError(f"{output}: the directory {output.parent} does not exist; create it, or name a file in an existing one")
    if output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(f"{output}: is the input file; name another output file")


def _write(output: Path, chosen: list[object]) -> None:
    if output.suffix == ".jsonl":
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in chosen)
    else:
        text = json.dumps(chosen, indent=2, ensure_ascii=False) + "\n"
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from error
