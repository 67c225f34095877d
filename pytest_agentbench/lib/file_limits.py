"""How many files and sockets a process may have open: raised where it is allowed, and checked against what a session needs."""

from __future__ import annotations

import resource
from contextlib import suppress

from pytest_agentbench.errors import ConfigError

ALWAYS = 64  # of a process without a rollout: its libraries, logs, pipes
EACH = 4  # of a rollout in flight, in the tap: to agent and backend, each perhaps a second one that idles
MOST = 65_536  # enough for anybody; a limit of a thousand millions makes some programs slow


def raise_limit() -> None:
    """Raises the soft limit of this process as far as the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # macOS has one more limit, which nobody tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_limit(concurrency: int) -> None:
    """Raises ConfigError where processes of a session may not open what so many rollouts in flight need."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ALWAYS + EACH * concurrency
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{concurrency} rollouts in flight need up to {needed} open files in a process, and {hard} are allowed: raise the hard limit "
            f"(`ulimit -Hn`; LimitNOFILE= of systemd, --ulimit nofile= of Docker), or ask for {max(1, (hard - ALWAYS) // EACH)} "
            "with --agentbench-concurrency"
        )
