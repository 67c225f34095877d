"""The clocks of nodes: bounds of their offset, and records that are moved to the controller's clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_agentbench.lib.codec import plain
from pytest_agentbench.records import Attempt, Chunk, LLMCall, Rollout
from pytest_agentbench.rollouts.nodes.joined_node import DRIFT, NodeClock, placed
from tests.record_values import INTEGERS, values_of

LENGTHS = {"lag_ns", "held_ns"}
SECOND = 1_000_000_000


def stamps(value: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yields the place and the value of each stamp in the JSON of a record that was measured. Knows them by their names only."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name.endswith("_ns") and name not in LENGTHS:
                yield from [(f"{path}.{name}", each)] if each else []
            elif name == "chunks":
                yield from ((f"{path}.chunks[{place}]", chunk[0]) for place, chunk in enumerate(each) if chunk[0])
            elif name in {"calls", "other_calls", "earlier_attempts", "drafts", "tool_calls", "programs", "verification"}:
                yield from stamps(each, f"{path}.{name}")
    for place, each in enumerate(value if isinstance(value, list) else ()):
        yield from stamps(each, f"{path}[{place}]")


def without(value: Any, places: set[str], path: str = "") -> Any:
    """Returns the JSON of a record in which the values at some places are left out."""
    if isinstance(value, dict):
        return {name: without(each, places, f"{path}.{name}") for name, each in value.items() if f"{path}.{name}" not in places}
    if isinstance(value, list):
        return [without(each[1:] if f"{path}[{n}]" in places else each, places, f"{path}[{n}]") for n, each in enumerate(value)]
    return value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(record=values_of(Rollout), by_ns=INTEGERS)
def test_all_stamps_of_a_record_move_alike(record: Rollout, by_ns: int) -> None:
    """Each stamp moves by the number, so all differences stay to the nanosecond. Lengths of time and everything else stay as they are."""
    before, after = plain(record), plain(placed(record, by_ns))
    measured = dict(stamps(before))

    assert {place: stamp + by_ns for place, stamp in measured.items()} == {**dict.fromkeys(measured, 0), **dict(stamps(after))}
    assert without(before, {*measured}) == without(after, {*measured})


def test_every_kind_of_stamp_moves() -> None:
    """In a record that has all of them, stamps of calls, chunks, tools, programs, drafts, verifier, judge and earlier attempts move."""
    call = LLMCall(110, 120, 190, (Chunk(130, "content", lag_ns=5), Chunk(150, "content")), 100, held_ns=7)
    record = Rollout(
        *("shop", "s-0", "default", 1, "ok"), earlier_attempts=(Attempt(1, "infra_error", "", 1, 10, 20, (call,), (call,)),), calls=(call,)
    )

    moved = placed(record, 1000)

    expected = LLMCall(1110, 1120, 1190, (Chunk(1130, "content", lag_ns=5), Chunk(1150, "content")), 1100, held_ns=7)
    assert (expected,) == moved.calls == moved.earlier_attempts[0].calls == moved.earlier_attempts[0].other_calls
    assert (1010, 1020) == (moved.earlier_attempts[0].started_ns, moved.earlier_attempts[0].ended_ns)
    assert (0, 0) == (moved.started_ns, moved.ended_ns)


def clock(*bounds: tuple[int, int, int]) -> NodeClock:
    """Returns a clock with bounds: 1 for `before`, -1 for `after`, time on the controller's clock, time on the node's clock."""
    made = NodeClock()
    for side, pool_ns, node_ns in bounds:
        if side > 0:
            made.before(pool_ns, node_ns)
        else:
            made.after(node_ns, pool_ns)
    return made


def test_the_order_of_messages_bounds_the_offset() -> None:
    """The offset lies between the greatest lower and the smallest upper bound; its middle is used, and its width is known."""
    half = clock((1, 1_000_000, 400))
    whole = clock((1, 1_000_000, 400), (-1, 1_000_300, 500), (1, 1_000_310, 520), (-1, 1_000_900, 600))

    assert (False, True) == (half.known, whole.known)
    assert (999_790, 1_000_300 - 500) == (1_000_310 - 520, 999_800)
    assert (999_795, 10) == (whole.offset_ns, whole.width_ns)


@given(
    offset=st.integers(-(10**15), 10**15),
    drift=st.floats(-DRIFT, DRIFT),
    delays=st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), min_size=1, max_size=20),
)
def test_the_offset_is_always_within_the_bounds(offset: int, drift: float, delays: list[tuple[int, int]]) -> None:
    """For messages with any delays, once a second, and clocks that drift by no more than expected, half the width is not exceeded."""
    made = NodeClock()
    for second, (there, back) in enumerate(delays, 1):
        sent = second * SECOND
        seen, answered = (at - offset - round(drift * at) for at in (sent + there, sent + there))
        made.before(sent, seen)
        made.after(answered, sent + there + back)
        true = offset + drift * (sent + there + back)

        assert abs(made.offset_ns - true) <= made.width_ns / 2 + 2


def test_an_old_bound_becomes_wider() -> None:
    """A narrow bound is used for as long as it is better than newer ones, although clocks drift: 50 microseconds a second."""
    narrow = [(1, SECOND, 0), (-1, SECOND + 1000, 0)]
    wide = [(1, 3 * SECOND, 2 * SECOND + 10**7), (-1, 3 * SECOND, 2 * SECOND - 10**7)]
    late = [(1, 900 * SECOND, 899 * SECOND + 10**7), (-1, 900 * SECOND, 899 * SECOND - 10**7)]

    assert (1000, 1000 + 4 * 50_000) == (clock(*narrow).width_ns, clock(*narrow, *wide).width_ns)
    assert 2 * 10**7 == clock(*narrow, *wide, *late).width_ns


def test_a_clock_that_jumps_is_found_again() -> None:
    """If a node was suspended, its clock stood still, and old bounds contradict the new ones. Then only the new ones count."""
    before = [(1, SECOND, 1000), (-1, SECOND + 500, 1000)]
    later = [(1, 60 * SECOND, 2000), (-1, 60 * SECOND + 700, 2100)]
    backwards = [(1, 61 * SECOND, 120 * SECOND), (-1, 61 * SECOND + 900, 120 * SECOND)]

    assert (60 * SECOND - 2000 + 300, 600) == (clock(*before, *later).offset_ns, clock(*before, *later).width_ns)
    assert (-59 * SECOND + 450, 900) == ((last := clock(*before, *later, *backwards)).offset_ns, last.width_ns)


def test_a_placed_rollout() -> None:
    """A record is moved by the middle of the bounds, its start in real time is that of this machine, and the widest bounds are kept."""
    made = clock((1, 5 * SECOND, 0), (-1, 5 * SECOND + 100, 0))
    now = time.monotonic_ns()
    record = Rollout("shop", "s-0", "default", 1, "ok", started_at=86_400.0, started_ns=now - 6 * SECOND, ended_ns=now)

    moved = made.place(record)
    unmeasured = made.place(replace(record, started_ns=0))

    assert (now - SECOND + 50, now + 5 * SECOND + 50) == (moved.started_ns, moved.ended_ns)
    assert abs(moved.started_at - (time.time() - (time.monotonic_ns() - moved.started_ns) / 1e9)) < 60
    assert (86_400.0, 0) == (unmeasured.started_at, unmeasured.started_ns)
    assert 100 == made.widest_ns


def test_differences_of_two_placed_records() -> None:
    """Records of two nodes whose clocks are days apart overlap after they were moved, as they did in reality."""
    starts = {1: 7 * SECOND, 86_400 * SECOND: 7 * SECOND}
    moved = []
    for offset, start in starts.items():
        made = clock((1, offset, 0), (-1, offset + 100, 0))
        moved.append(made.place(Rollout("shop", "s-0", "default", 1, "ok", started_ns=start - offset, ended_ns=start + SECOND - offset)))

    assert all(abs(one.started_ns - other.started_ns) <= 100 for one, other in combinations(moved, 2))
    assert {SECOND} == {each.ended_ns - each.started_ns for each in moved}
