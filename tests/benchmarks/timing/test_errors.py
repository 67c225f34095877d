"""The calculations of the benchmark `timing`: matching calls with requests, and computing errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measurement import BenchmarkError
from benchmarks.timing.benchmark import Row, gross
from benchmarks.timing.errors import Costs, Measured, added, agent_ttft, compare, joined, measured, medians, model_key, size
from benchmarks.timing.table import cells, fits, table
from benchmarks.truth import Event, Served
from pytest_agentbench.records import Chunk, LLMCall

MS = 1_000_000  # nanoseconds
ARRIVED = 1_000 * MS


def served(key: str = "a", sent_ms: tuple[float, ...] = (100, 120, 140), arrived_ns: int = ARRIVED) -> Served:
    """Returns the record of a request: a role, then content at the given times after its arrival.

    Each event was due 10 us before it was sent.
    """
    times = [arrived_ns + round(each * MS) for each in sent_ms]
    kinds = ["role", *["content"] * len(times), "done"]
    events = [
        Event(kind, at - 10_000, at, at + 5_000, int(kind == "content"))
        for kind, at in zip(kinds, [times[0], *times, times[-1]], strict=True)
    ]
    return Served(key, arrived_ns, tuple(events))


def call(stamps_ms: tuple[float, ...], sent_ms: float = -0.1, own: tuple[bool, ...] = (True, True, True), model: str = "") -> LLMCall:
    """Returns a call whose chunks have timestamps at the given times after the server received the request."""
    chunks = [Chunk(ARRIVED + round(at * MS), "content", alone) for at, alone in zip(stamps_ms, own, strict=True)]
    role = Chunk(chunks[0].at_ns, "role", own_stamp=False)
    sent = ARRIVED + round(sent_ms * MS)
    return LLMCall(received_ns=sent, sent_ns=sent, ended_ns=ARRIVED + 200 * MS, chunks=(role, *chunks), model=model)


def test_errors_are_differences_between_tap_and_server() -> None:
    """Errors compare timestamps with send times, TTFT with that of the server from the last byte of the request, and gaps with gaps."""
    errors = compare([(call((100.5, 120.2, 140.2)), served())])

    assert [pytest.approx(0.6)] == errors.ttft  # 0.5 late, and the call began 0.1 before the server had the request
    assert [0.5, 0.2, 0.2] == pytest.approx(errors.chunk)
    assert [-0.3, 0.0] == pytest.approx(errors.gap)
    assert [0.01] * 3 == pytest.approx(errors.late)
    assert [0.005] * 3 == pytest.approx(errors.send)
    assert (3, 0, 3) == (errors.clean, errors.kernel, errors.tokens)


def test_clean_chunks() -> None:
    """A chunk that shares its timestamp with the next chunk is not clean.

    The last output chunk may share it with events after the output.
    """
    errors = compare([(call((100.0, 120.0, 120.0), own=(True, False, False)), served())])

    assert 2 == errors.clean
    assert 100 / 3 == pytest.approx(measured(errors, Costs()).unclean)


def test_figures_are_of_the_size_of_errors() -> None:
    """Figures use the size of errors: a timestamp that is too early is as wrong as one that is too late."""
    run = measured(compare([(call((99.5, 120.2, 140.2)), served())]), Costs(cpu=30.0))

    assert [0.4, 0.2] == pytest.approx([run.ttft_p99, run.chunk_p50])
    assert (30.0, None) == (run.cpu, run.added_p50)
    assert 0.7 == pytest.approx(run.gap_p99, rel=0.02)
    assert 0.0 == run.unclean
    assert 1.5 == size([-2.0, 1.0], 50)


@given(st.floats(-50, 50), st.lists(st.floats(1, 30), min_size=2, max_size=20))
def test_a_constant_clock_error_does_not_affect_gaps(off: float, gaps: list[float]) -> None:
    """A constant error affects every timestamp, but no gap."""
    times = tuple(100 + sum(gaps[:count]) for count in range(1, len(gaps) + 1))
    stamped = call(tuple(time + off for time in times), sent_ms=-1, own=(True,) * len(times))
    errors = compare([(stamped, served(sent_ms=times))])

    assert [off] * len(times) == pytest.approx(errors.chunk, abs=1e-5)
    assert [0.0] * (len(times) - 1) == pytest.approx(errors.gap, abs=1e-5)
    assert [off + 1] == pytest.approx(errors.ttft, abs=1e-5)


def test_calls_find_their_requests_by_key_and_order() -> None:
    """Calls with the same key are matched by the order in which they were made, in whatever order they are given."""
    times = (100, 120, 140)
    early, late = served(arrived_ns=ARRIVED), served(arrived_ns=ARRIVED + 100)
    first, second = call(times, sent_ms=-2), call(times, sent_ms=-1)
    other = call(times)

    assert [(first, early), (second, late), (other, served("b"))] == joined(
        [("b", other), ("a", second), ("a", first)], [late, served("b"), early]
    )
    assert "3.1" == model_key(call(times, model="truth/ttft=1,key=3.1"))


def test_unmatched_calls_are_errors() -> None:
    """A call without a request, a request without a call, and a request outside of its call are errors of the benchmark."""
    good = call((100, 120, 140))

    with pytest.raises(BenchmarkError, match="recorded 1 calls of 'a', the server 0"):
        joined([("a", good)], [])
    with pytest.raises(BenchmarkError, match="recorded 1 calls of 'a', the server 2"):
        joined([("a", good)], [served(), served()])
    with pytest.raises(BenchmarkError, match="'a' arrived before its call began or after it ended"):
        joined([("a", good)], [served(arrived_ns=ARRIVED + 300 * MS)])


def test_a_call_has_to_have_all_chunks() -> None:
    """A missing chunk, a chunk of another kind, and a failed call cannot be measured."""
    good = call((100, 120, 140))

    with pytest.raises(BenchmarkError, match="'a': 2 of 3 output chunks"):
        compare([(replace(good, chunks=good.chunks[:-1]), served())])
    with pytest.raises(BenchmarkError, match="'a': 3 of 3 output chunks"):
        compare([(replace(good, chunks=(*good.chunks[:-1], good.chunks[-1]._replace(kind="reasoning"))), served())])
    with pytest.raises(BenchmarkError, match="error: the backend left"):
        compare([(replace(good, error_kind="cut", error="the backend left"), served())])


def test_an_agent_s_own_clock_is_judged_as_well() -> None:
    """The TTFT that an agent measures is from its call to the first output that it received."""
    assert [5.0] == agent_ttft({"a": (7 * MS, 112 * MS)}, [served()])


def test_added_latency_is_the_difference_of_twins() -> None:
    """The server's own times, here 140 and 150 ms, are subtracted from both twins."""
    straight, tapped = served("twin-0-straight"), served("twin-0-tapped", (100, 120, 150))

    assert [0.75] == added({"twin-0": 141 * MS, "twin-1": 0}, {"twin-0": 151 * MS + 750_000}, [straight, tapped])


def test_medians_of_known_figures() -> None:
    """Medians leave out runs without the figure. If no run has it, there is no median."""
    runs = [Measured(ttft_p99=value, agent_p50=value) for value in (1.0, 9.0, 2.0)] + [Measured(ttft_p99=3.0)]

    assert Measured(ttft_p99=2.5, agent_p50=2.0) == medians(Measured, runs)
    assert Costs() == medians(Costs, [])


def test_verdicts_name_missed_limits() -> None:
    """A figure that equals its limit holds. A figure that was not measured misses no limit."""
    assert "hold" == fits({"TTFT": 0.3, "added": None}, {"TTFT": 0.3, "added": 0.7})
    assert "MISSES TTFT, CPU" == fits({"TTFT": 0.31, "CPU": 46}, {"TTFT": 0.3, "CPU": 45})
    assert "-" == fits({}, {})


def test_gross_errors() -> None:
    """Only figures that nothing but a fault explains are reported as gross."""
    fine = Measured(ttft_p99=20.0, chunk_p99=5.0, unclean=4.0)
    row = Row(48, "plain", "whole answers", {}, fine)

    assert [] == [*gross([row])]
    assert ["48, plain, whole answers: clean 6 where 5 is already far too much"] == [
        *gross([replace(row, medians=replace(fine, unclean=6.0))])
    ]


def test_every_row_of_the_table_has_all_columns() -> None:
    """The table is Markdown with all columns in each row. Figures that were not measured are dashes."""
    run = Measured(ttft_p50=0.0123, ttft_p99=12.345, unclean=0.5, cpu=31.4)
    head, rule, row = table([(("48", "plain", "whole answers"), run, Costs(cpu=29.6), "hold")]).splitlines()

    assert head.count("|") == rule.count("|") == row.count("|")
    assert "| 48 | plain | whole answers | 0.012 | 12.35 | - | - | - | 99.50 | - | 31 | 30 | - | - | - | - | - | - | hold |" == row
    assert 15 == len(cells(run, Costs()))
