"""The runs that words of a command line name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path


def runs_of(name: str, reports: Path) -> Iterator[Path]:
    """The run of a name, or all finished runs of a directory that is none itself, the oldest first; raises ConfigError."""
    from pytest_agentbench.runs.run_file import FILE, find_run

    inside: Sequence[Path] = sorted(file.parent for file in Path(name).glob(f"*/{FILE}") if not file.parent.is_symlink())
    if inside and not (Path(name) / FILE).exists():
        yield from inside
    else:
        yield find_run(name, reports)
