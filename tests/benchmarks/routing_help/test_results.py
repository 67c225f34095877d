"""Calculating the results of the comparison of routers, and the page of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from benchmarks.routing_help.__main__ import order
from benchmarks.routing_help.load import Block, Session, make_round
from benchmarks.routing_help.page import page
from benchmarks.routing_help.results import results
from benchmarks.routing_help.routers import ARMS

ROUNDS = 8


def made(factor: float, place: int, *, tail: float = 1.0, failed: int = 0) -> list[Block]:
    """Returns blocks of 16 sessions whose times are those of the round times a factor, with noise. Those of the last three have another."""
    blocks = []
    for number in range(ROUNDS):
        random, began = Random(number), 10 * (6 * number + (place if number % 2 else 5 - place))
        noise = Random(f"{number} {place}").uniform(0.97, 1.03)
        times = [random.uniform(1, 2) * factor * noise * (tail if each >= 13 else 1) for each in range(16)]
        sessions = [Session(f"s{each}", began + each / 10, seconds, 6, failed * (each == 0)) for each, seconds in enumerate(times)]
        blocks.append(Block(tuple(sessions), 0.8, 0.25))
    return blocks


def arms(**changed: Sequence[Block]) -> dict[str, Sequence[Block]]:
    """Returns equal blocks of all arms, except those that are given by name, with underscores for spaces."""
    return {name: changed.get(name.replace(" ", "_"), made(1.0, place)) for place, name in enumerate(ARMS)}


def test_ratios_and_medians() -> None:
    """The ratio is that of the first arm to another. Sessions with a failed call have no time. A slow tail is seen in p90."""
    found = results(arms(round_robin=made(1.5, 2), session_affinity=made(1.0, 4, tail=4.0, failed=1)))
    slower, tail = found["round robin"], found["session affinity"]

    assert slower.ratio is not None and slower.ratio.estimate is not None and slower.interval is not None
    assert ("PASS", 0.67) == (slower.ratio.verdict, round(slower.ratio.estimate, 2))
    assert slower.interval.low < slower.p50 < slower.interval.high
    assert (6 * 16 * ROUNDS, ROUNDS, 1 / 16) == (tail.calls, tail.failed, tail.failed_sessions)
    assert tail.ratio is not None and tail.ratio_p90 is not None
    assert tail.ratio.estimate is not None and tail.ratio_p90.estimate is not None
    assert "PASS" == tail.ratio_p90.verdict
    assert tail.ratio_p90.estimate < 0.5 < tail.ratio.estimate
    assert None is found["thompson sticky"].ratio


def test_the_page() -> None:
    """The page has a table for each condition, and says against which arms of affinity nothing was shown although an engine is slow."""
    blocks = {"alike": arms(), "slow": arms(sticky_least_loaded=made(1.4, 5))}
    text = page(blocks, {"alike": ("quiet", {}), "slow": ("quiet", {"round robin": 1.5})}, "command", "here")

    assert 2 * len(ARMS) == sum(line.startswith("| `") for line in text.splitlines())
    assert "  So by the median it **is not shown to beat** `session affinity`, although an engine is slow." in text
    assert 2 == text.count("although an engine is slow")
    assert "One engine leaves" not in text
    assert "`round robin` 1.5 ms" in text


def test_order() -> None:
    """Each second round has the reverse order, so that each pair of arms has both orders equally often. Each arm begins at some time."""
    orders = [order(number) for number in range(12)]
    before = [each.index("thompson sticky") < each.index("session affinity") for each in orders[:8]]

    assert all(first == second[::-1] for first, second in zip(orders[::2], orders[1::2], strict=True))
    assert 4 == sum(before)
    assert {*ARMS} == {each[0] for each in orders[::2]}


def test_rounds_share_no_text() -> None:
    """Two rounds have different sessions with different beginnings, and the same round always has the same."""
    one, other = make_round(1), make_round(2)

    assert one.sessions == make_round(1).sessions
    assert one.sessions[0].messages[0] != other.sessions[0].messages[0]
    assert [*one.starts] == sorted(one.starts)
