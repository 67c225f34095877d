"""The environment variables of agentbench itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable

PREFIX = "AGENTBENCH_"

#: Those that users set; .env.example says what each is for.
READ = frozenset(["AGENTBENCH_ENVS", "AGENTBENCH_GPUS", "AGENTBENCH_LOCKS", "AGENTBENCH_STACKS"])

#: Those that agentbench gives to processes it starts, in which somebody may start a session again.
GIVEN = frozenset(
    [
        *("AGENTBENCH_ANSWER", "AGENTBENCH_MODEL", "AGENTBENCH_SCENARIO"),
        *("AGENTBENCH_COMMAND", "AGENTBENCH_HARBOR_COMMAND", "AGENTBENCH_STACK"),
        *("AGENTBENCH_LOG", "AGENTBENCH_ROLLOUT", "AGENTBENCH_SESSION"),
    ]
)


def unread(variables: Iterable[str], named: Collection[str]) -> list[str]:
    """Those of the variables that begin as ours do and that nothing reads, sorted; `named`: those that settings name as places of keys."""
    return sorted(name for name in variables if name.startswith(PREFIX) and name not in READ | GIVEN and name not in named)
