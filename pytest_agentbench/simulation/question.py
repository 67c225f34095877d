"""What may be asked about a run on other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Router, as a command line names it -> as the simulator does.
ROUTERS: Mapping[str, str] = {"kv": "kv_router", "round_robin": "round_robin"}

MEASURED, MOCKER = "measured", "mocker"  # whose speed a simulated worker has: the run's, or that of the simulator's own model

#: `workers`, `kv-blocks`, `block-size`, `router` -> its value, of those that somebody says.
Facts = Mapping[str, int | str]


@dataclass(frozen=True)
class Question:
    """What is asked of a run."""

    workers: Sequence[int] = ()  # empty: as many as the run had; so are the others
    kv_blocks: Sequence[int] = ()
    routers: Sequence[str] = ()
    original: Facts = field(default_factory=dict)  # of the run's setting, what its backend does not say, or says wrongly
    timing: str = MEASURED  # MEASURED, MOCKER, or the path of a profile
    objectives: Mapping[str, float] | None = None  # milliseconds; None: those of the run
    limit_s: float = 300.0  # seconds that one replay may take
