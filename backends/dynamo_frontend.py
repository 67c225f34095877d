"""Starts Dynamo's frontend with a routing policy by name: `python dynamo_frontend.py --policy=NAME OPTION...`.

A policy of Dynamo takes several options of its command line. This script turns the name into these options, so that a policy is a single
setting of a YAML. NAME is a key of POLICIES. OPTION is any option of `python -m dynamo.frontend`, which replaces this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

#: Seconds without a call after which Dynamo forgets which worker a session belongs to. It is longer than the pauses for tools.
AFFINITY = "--router-session-affinity-ttl-secs=3600"
HARD = (AFFINITY, "--router-session-affinity-mode=hard")  # all calls of a session go to one worker
SOFT = (AFFINITY, "--router-session-affinity-mode=soft")  # the policy prefers that worker, and may choose another

#: Calls wait in the router while every worker has more than this part of a batch to prefill. Priorities order only this queue. Dynamo 1.7
#: removes the option; its successor is `policy_classes` of --router-policy-config.
QUEUE = "--router-queue-threshold=0.1"

ROUND_ROBIN, KV = "--router-mode=round-robin", "--router-mode=kv"


def _file(name: str) -> str:
    """Returns the option for a file of Dynamo's `worker_selection` and `request_classifier`."""
    return f"--router-policy-config={Path(__file__).parent / 'dynamo-policies' / name}"


POLICIES: Mapping[str, tuple[str, ...]] = {
    "round-robin": (ROUND_ROBIN,),
    "round-robin-hard": (ROUND_ROBIN, *HARD),
    "least-loaded": ("--router-mode=least-loaded",),
    "kv": (KV,),
    "kv-hard": (KV, *HARD),
    "kv-soft": (KV, *SOFT),
    "kv-queue": (KV, *SOFT, QUEUE),
    "two-tier": (KV, *SOFT, _file("two-tier.yaml")),
    "thunderagent": (KV, *SOFT, _file("thunderagent.yaml")),
}

if __name__ == "__main__":
    name = sys.argv[1].removeprefix("--policy=")
    if name not in POLICIES:
        sys.exit(f"dynamo_frontend.py: unknown policy {name!r}; known: {', '.join(POLICIES)}")
    os.execv(sys.executable, [sys.executable, "-m", "dynamo.frontend", *POLICIES[name], *sys.argv[2:]])
