"""Messages between the process that wants a stack and the guardian that keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Serving:
    """The first line that a guardian writes to stdout: from now on holders can connect to its socket."""
