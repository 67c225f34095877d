"""What a verifier said of a task that was carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verification:
    """One verification, made after the agent was done. A task whose verifier could not be started has none: it ends as `infra_error`."""

    reward: float  # the task's main reward; 0 where nothing was done
    rewards: Mapping[str, float] = field(default_factory=dict)  # all that the verifier wrote, by name
    exit_code: int | None = None  # of the verifier's program, for the reader only; None: it was killed
    output: str = ""  # of the verifier, cut in the middle
    first_failure: str = ""  # name of the first check that failed, where the verifier says it
    started_ns: int = 0  # monotonic nanoseconds
    ended_ns: int = 0
    sandbox: str = ""  # which kind ran it, and which of its limits could not be kept: `docker`, or `docker, where ...`
    skipped: str = ""  # name of the first check that was skipped, or how many were, where the verifier says it
    mode: str = "shared"  # `separate`: the verifier ran in a sandbox in which the agent never was; `shared`: it ran in the agent's
    tampered: str = ""  # how the verification was sabotaged, one sentence; the reward is 0 then. Empty: it was not
    changed: tuple[str, ...] | None = ()  # files that a shared verifier may use and the agent changed, 50 at most; null: not compared
