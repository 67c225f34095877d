"""Messages between the pool and a tap, and between the controller and a tap that starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TapListening:
    """The first line that a tap writes to stdout: from now on agents and the pool can connect."""

    port: int  # for agents, on 127.0.0.1; all taps of a session share it
    control_port: int  # for the pool, on 127.0.0.1


@dataclass(frozen=True)
class TapPorts:
    """Where the taps of a session are. The controller sends this to the pool, which connects to each of them."""

    port: int  # for agents, on 127.0.0.1; the taps share it
    control_ports: tuple[int, ...]  # for the pool, on 127.0.0.1, one of each tap
    token: str  # of the pool's `Hello` to them
