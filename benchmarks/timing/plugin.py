"""Measures the tap in sessions of the whole plugin, in which agents, scoring and the journal also use the machine."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from benchmarks.measurement import run_pytest
from benchmarks.timing.errors import Costs, Measured, compare, joined, measured
from benchmarks.timing.rig import LABELS
from benchmarks.truth import Truth
from benchmarks.workplace import SUITE, entry, workplace

IN_FLIGHT = 48
ROLLOUTS = 3 * IN_FLIGHT  # of one call each
WAYS = {
    "plugin, one process": (f"--agentbench-concurrency={IN_FLIGHT}",),
    f"plugin, -n {IN_FLIGHT}": ("-n", str(IN_FLIGHT), f"--agentbench-workers={IN_FLIGHT}"),
}


def run(arguments: Sequence[str], truth: Truth, startups: Sequence[float]) -> Measured:
    """Runs a pytest session against the truth server. Returns the errors and the CPU time of its tap.

    `startups` are milliseconds of CPU that taps took to start. Their median is subtracted from the CPU time.
    """
    truth.take()  # what is left of others
    with workplace() as place:
        place.suite([0] * ROLLOUTS)
        place.write(
            f"{SUITE}/data.json", json.dumps([{**entry(n, 0), "question": f"I am key=customer-{n}, how are you?"} for n in range(ROLLOUTS)])
        )
        place.write("backends/truth.yaml", json.dumps({"kind": "url", "url": truth.url, "labels": LABELS}))
        run_pytest(place.root, "--agentbench-backend=truth", *arguments, SUITE)
        costs = place.last_run(ROLLOUTS).processes
        calls = [(key_of(rollout.scenario), call) for rollout in place.last_rollouts() for call in rollout.calls]
    errors = compare(joined(calls, [request for request in truth.take() if request.key]))
    cpu = costs["tap"].cpu_s * 1e3 - statistics.median(startups)
    return measured(errors, Costs(cpu / errors.tokens * 1e3))


def key_of(scenario: str) -> str:
    """Returns the key of the call in a scenario: `customer-7` for bench-00007."""
    return f"customer-{int(scenario.rpartition('-')[2])}"
