"""Routes a million calls by Thompson sampling, while workers join and leave: `python -m benchmarks.router_state [--calls N]`.

It checks each decision, and prints how much the router remembers and how much memory the process uses. Nothing is sent anywhere: this is
the rule alone, with a clock that goes on by a hundredth of a second for each call.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from pytest_agentbench.router.constants import PRESETS
from pytest_agentbench.router.features import CallHints, HintLevel, WorkerLoad
from pytest_agentbench.router.thompson import Ending, ThompsonRouter

CALLS = 1_000_000
STEP = 0.01  # seconds between two calls, on the router's clock
CHANGE = 0.001  # a worker joins or leaves before this share of the calls
FEWEST, MOST = 1, 6  # workers
LEVELS: Sequence[HintLevel] = ("LOW", "MEDIUM", "HIGH")
ENDINGS: Sequence[Ending] = ("answered", "answered", "answered", "failed", "disconnected", "unjudged")
FEEDBACK = 0.7  # share of the calls that get feedback


@dataclass
class State:
    """What was seen while calls were routed."""

    changes: int = 0  # workers that joined or left
    wrong: int = 0  # decisions for a worker that was not there, or with a score that is not finite
    sessions: int = 0  # most sessions that were remembered
    pending: int = 0  # most calls without feedback
    averages: int = 0  # most averages of latencies
    learners: int = 0  # most workers that were remembered
    memory: list[int] = field(default_factory=list)  # most memory of the process after each tenth of the calls, bytes


def route(calls: int, preset: str, seed: int = 0, change: float = CHANGE, **limits: int) -> State:
    """Routes calls and returns what was seen.

    A worker joins or leaves before a share `change` of the calls. `limits` replace constants of the preset.
    """
    random, state, now = Random(seed), State(), 0.0
    router = ThompsonRouter(PRESETS[preset].model_copy(update=limits), seed, lambda: now)
    workers, newest = {0, 1}, 1
    for number in range(calls):
        now += STEP
        if random.random() < change:
            state.changes += 1
            if len(workers) < MOST and (len(workers) == FEWEST or random.random() < 0.5):
                newest += 1
                workers.add(newest)
            else:
                workers.remove(random.choice([*workers]))
        level = random.choice(LEVELS)
        hints = CallHints(f"s{random.randrange(max(1, number))}", random.randrange(20), level, level, random.randrange(20_000))
        loads = {worker: WorkerLoad(random.choice([None, 0.5]), random.choice([None, 3.0]), random.random()) for worker in workers}
        routed = router.choose(hints, loads)
        if routed is None or routed.worker not in workers or not all(map(math.isfinite, routed.scores.values())):
            state.wrong += 1
        elif random.random() < FEEDBACK:
            router.feedback(routed.decision, random.choice(ENDINGS), random.lognormvariate(6, 1), random.randrange(100))
        note(state, router)
        if calls >= 10 and (number + 1) % (calls // 10) == 0:
            state.memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return state


def note(state: State, router: ThompsonRouter) -> None:
    state.sessions = max(state.sessions, len(router.prefixes))
    state.pending = max(state.pending, router.pending)
    state.averages = max(state.averages, len(router.baselines))
    state.learners = max(state.learners, len(router.learners))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router_state", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--preset", choices=PRESETS, default="sticky")
    options = parser.parse_args(arguments)
    state = route(options.calls, options.preset)
    print(f"{options.calls:,} calls, {state.changes:,} workers joined or left, {state.wrong} wrong decisions")
    print(f"at most {state.sessions:,} sessions, {state.pending:,} calls, {state.averages} averages, {state.learners} workers remembered")
    print("memory after each tenth, MB:", ", ".join(f"{size / 1e6:.0f}" for size in state.memory))
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
