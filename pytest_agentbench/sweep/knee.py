"""The knee of throughput against latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Operation(NamedTuple):
    """How a backend does at one concurrency."""

    concurrency: int
    throughput: float  # output tokens per second
    latency_ms: float  # of a call, median


def power(operation: Operation) -> float:
    """Throughput over latency: great where much is done and little is waited for (Giessler et al. 1978)."""
    return operation.throughput / operation.latency_ms


def knee(operations: Sequence[Operation]) -> Operation | None:
    """The one of the greatest power; the smallest of equals. None of fewer than three, which have no bend.

    Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications", ICC 1979: at this point
    the line from the origin touches the curve of latency over throughput, and more load buys less than it costs.
    """
    known = [each for each in sorted(operations) if each.latency_ms > 0]
    return max(known, key=lambda each: (power(each), -each.concurrency)) if len(known) > 2 else None
