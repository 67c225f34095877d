"""The input of `agentbench what-if`, which simulates a run with other stack settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Router on the command line -> router of the simulator.
ROUTERS: Mapping[str, str] = {"kv": "kv_router", "round_robin": "round_robin"}

MEASURED, MOCKER = "measured", "mocker"  # speed of simulated workers: measured in the run, or from the simulator's own model

#: `workers`, `kv-blocks`, `block-size`, `router` -> value. Unknown ones are missing.
Facts = Mapping[str, int | str]


@dataclass(frozen=True)
class Question:
    """The settings to simulate for a run, and how to simulate them."""

    workers: Sequence[int] = ()  # empty: as in the run; likewise for KV blocks and routers
    kv_blocks: Sequence[int] = ()
    routers: Sequence[str] = ()
    original: Facts = field(default_factory=dict)  # parts of the run's own setting that its backend does not report, or reports wrongly
    timing: str = MEASURED  # MEASURED, MOCKER, or the path of a profile
    objectives: Mapping[str, float] | None = None  # objective -> milliseconds; None: the objectives of the run
    limit_s: float = 300.0  # time limit of one replay, seconds
