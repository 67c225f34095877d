"""Formats the table of the timing benchmark as Markdown, and the page benchmarks/timing-results.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.timing.errors import Costs, Measured

COLUMNS = (
    "streams",
    "stream",
    "agents",
    "TTFT p50",
    "p99",
    "chunk p50",
    "p99",
    "ITL p99",
    "clean %",
    "kernel %",
    "tap CPU",
    "bare CPU",
    "added p50",
    "bare",
    "agent's TTFT p50",
    "p99",
    "server late p99",
    "send p99",
    "targets",
)
LEGEND = (
    "TTFT: the tap's TTFT - (first output event sent - last byte of the request arrived).",
    "Chunk: the tap's stamp of an output chunk - the moment before the server's send(). ITL: what two stamps are apart - their sends.",
    "Clean: output chunks that share their stamp with no later output chunk, as in every report. Kernel: calls that the kernel stamped.",
    "The last output chunk may share its stamp with the finish event right behind it; how far that puts it off is in the errors of chunks.",
    "Added: what a small call takes longer through the tap than straight, the server's own time taken off; pairs, beside the streams.",
    "Bare: the same of a relay that passes bytes on, keeps their stamps and does nothing else, run in turns with the tap.",
    "Most of the CPU is the machine's doing: a core that slept between two chunks begins with cold caches, in a bare relay too.",
    "Agent's TTFT: the same error by the clock of the agent, as the openai package lets it see.",
    "Server late: sent - due. Errors are against the sending, so they do not contain it.",
    "Send: what the server's send() took; the kernel hands the bytes over somewhere within it.",
)
PACKAGES = ("uvloop", "httptools", "aiohttp", "openai")


def table(rows: Sequence[tuple[Sequence[str], Measured, Costs, str]]) -> str:
    """Returns the table. A row has (streams, kind of stream, agents), medians of the tap and of the minimal relay, and a verdict."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([*names, *cells(medians, floor), verdict] for names, medians, floor, verdict in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(run: Measured, floor: Costs) -> list[str]:
    clean = None if run.unclean is None else 100 - run.unclean
    times = (run.ttft_p50, run.ttft_p99, run.chunk_p50, run.chunk_p99, run.gap_p99)
    agents = (run.agent_p50, run.agent_p99, run.late_p99, run.send_p99)
    return [
        *map(number, times),
        number(clean, 2),
        number(run.kernel, 0),
        number(run.cpu, 0),
        number(floor.cpu, 0),
        number(run.added_p50, 2),
        number(floor.added_p50, 2),
        *map(number, agents),
    ]


def number(value: float | None, digits: int = 3) -> str:
    """Formats a value with at most `digits` digits after the point, from 1 on with at most two. Returns `-` for None."""
    if value is None:
        return "-"
    return f"{value:.{digits if abs(value) < 1 else min(digits, 2)}f}"


def page(command: str, text: str, notes: Sequence[str], priority: str) -> str:
    """Returns the page with the table, the command that made it, the machine and notes."""
    title = "# How true the stamps are"
    origin = f"Made by `{command}` on {machine()}.\n{priority}"
    return "\n\n".join((title, origin, text, "\n".join(f"- {note}" for note in notes))) + "\n"


def machine() -> str:
    """Describes this machine and the versions of the packages that affect the figures."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{os.cpu_count()} cores ({processor()}), Linux {platform.release()}, Python {platform.python_version()}, {packages}"


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def fits(values: Mapping[str, float | None], limits: Mapping[str, float]) -> str:
    """Returns `hold`, or the names of the limits that are missed, or `-` without limits. Figures that were not measured do not count."""
    missed = [name for name, limit in limits.items() if (value := values.get(name)) is not None and value > limit]
    return f"MISSES {', '.join(missed)}" if missed else "hold" if limits else "-"
