"""Cuts a smaller data file out of a larger one."""

from __future__ import annotations

import json
import random
from pathlib import Path

from pytest_agentbench.datasets.agent_leaderboard import entries
from pytest_agentbench.errors import ConfigError


def subset(source: Path, output: Path, limit: int, seed: int | None = None) -> int:
    """Writes `limit` entries of a file, unchanged and in its order, and returns how many there were to write.

    The first ones without a seed, a random sample with one. Files that end in .jsonl hold JSON lines, others a JSON list.
    A `tools.json` that entries share is not copied. Raises ConfigError that names the file and what is wrong with it.
    """
    if limit < 1:
        raise ConfigError(f"{source}: a subset has at least one scenario, not {limit}")
    everything = [entry for _, entry in entries(source)]
    if not everything:
        raise ConfigError(f"{source}: no scenarios in it")
    count = min(limit, len(everything))
    positions = range(count) if seed is None else sorted(random.Random(seed).sample(range(len(everything)), count))
    _write(output, [everything[position] for position in positions])
    return count


def _write(output: Path, chosen: list[object]) -> None:
    if output.suffix == ".jsonl":
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in chosen)
    else:
        text = json.dumps(chosen, indent=2, ensure_ascii=False) + "\n"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from error
