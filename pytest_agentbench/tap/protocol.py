"""Messages between the pool and a tap, and between the controller and a tap that starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TapListening:
    """The first line that a tap writes to stdout: from now on agents and the pool can connect."""

    port: int  # for agents, on 127.0.0.1; all taps of a session share it
    control_port: int  # for the pool, on 127.0.0.1
