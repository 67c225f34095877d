"""codec: CPU time of converting a record of 15 kB to JSON values and back, relative to json.dumps and json.loads"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from benchmarks.measurement import BenchmarkError, Figure, Options, Result
from benchmarks.reference.store import INPUTS, archive_of, read_archive
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_text import opened
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.journal import FILE, rollout_of

SIZE = 15_000  # bytes; the record whose size is nearest to it is taken
ROUNDS, TIMES = 200, 5  # each of the four takes its turn in each round
ENCODE, DECODE = 0.5, 1.5  # of the time for the text


def measure(options: Options) -> Result:
    del options  # one size
    journals = [content for name, content in read_archive(archive_of("banking")).items() if name.startswith(INPUTS) and name.endswith(FILE)]
    text = min((opened(line) for journal in journals for line in journal.splitlines()), key=lambda each: abs(len(each) - SIZE))
    data, rollout = json.loads(text), rollout_of(text)
    if codec.read(Rollout, codec.plain(rollout)) != rollout:
        raise BenchmarkError("the record has changed after a conversion to JSON values and back")
    seconds = _seconds(
        {
            "plain": lambda: codec.plain(rollout),
            "dumps": lambda: json.dumps(data),
            "read": lambda: codec.read(Rollout, data),
            "loads": lambda: json.loads(text),
        }
    )
    microseconds = {name: f"{each * 1e6:.0f} us" for name, each in seconds.items()}
    texts = f"json.dumps {microseconds['dumps']}, json.loads {microseconds['loads']}"
    return Result(
        [
            Figure("codec.encode", seconds["plain"] / seconds["dumps"], "x", ENCODE, microseconds["plain"]),
            Figure("codec.decode", seconds["read"] / seconds["loads"], "x", DECODE, microseconds["read"]),
        ],
        [f"a record of {len(text) / 1e3:.1f} kB; {texts}; least of {ROUNDS} rounds, in which the four take turns"],
    )


def _seconds(functions: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the least CPU time of one call of each function."""
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            started = time.process_time()
            for _ in range(TIMES):
                function()
            least[name] = min(least[name], (time.process_time() - started) / TIMES)
    return least
