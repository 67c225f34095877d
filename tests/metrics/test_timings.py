"""Latencies of calls with round numbers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.timings import PROMPT_NS, LateTimestamps
from pytest_agentbench.records import Chunk, Json, LLMCall

MS = 1_000_000  # nanoseconds


def _call(*chunks: tuple[int, str], sent: int | None = 0, ended: int = 500, **fields: Any) -> LLMCall:
    """Returns a call with chunks given as (milliseconds, kind). `sent` and `ended` are milliseconds too."""
    return LLMCall(
        received_ns=0,
        sent_ns=None if sent is None else sent * MS,
        ended_ns=ended * MS,
        chunks=tuple(Chunk(at * MS, kind) for at, kind in chunks),
        **fields,
    )


THINKING = _call(
    (10, "role"), (200, "reasoning"), (250, "reasoning"), (350, "content"), (400, "tool_call"), (440, "finish"), (450, "usage"), sent=5
)


def test_latencies_start_at_the_send() -> None:
    """Latencies begin when the call is sent. A role is an event but not a token, and reasoning is a token but not an answer."""
    assert 195 * MS == timings.ttft_ns(THINKING)
    assert 5 * MS == timings.first_event_ns(THINKING)
    assert 345 * MS == timings.first_answer_ns(THINKING)
    assert 495 * MS == timings.e2e_ns(THINKING)


def test_gaps_are_between_output_chunks() -> None:
    """The gaps before the first token, to the usage chunk and to the end are not inter-token latencies."""
    assert [50 * MS, 100 * MS, 50 * MS] == timings.itl_ns(THINKING)
    assert [] == timings.itl_ns(_call((200, "content")))


def test_time_per_output_token_uses_tokens_not_chunks() -> None:
    """Two chunks with 7 tokens and a gap of 300 ms have 6 tokens after the first one, 50 ms each."""
    packed = ((100, "content"), (400, "content"))

    assert 50.0 * MS == timings.tpot_ns(_call(*packed, completion_tokens=7))
    assert 300.0 * MS == timings.tpot_ns(_call(*packed))
    assert timings.tpot_ns(_call(*packed, completion_tokens=1)) is None
    assert timings.tpot_ns(_call((100, "content"), completion_tokens=7)) is None


def test_tokens_of_the_first_event() -> None:
    """If the server reports 4 of 10 tokens in the first event, 6 came after it. If all are in the first event, TPOT is None."""
    chunks = (Chunk(50 * MS, "role", tokens=0), Chunk(100 * MS, "content", tokens=4), Chunk(400 * MS, "content", tokens=10))

    assert 50.0 * MS == timings.tpot_ns(LLMCall(0, 0, 500 * MS, chunks, completion_tokens=10, token_source="continuous"))
    assert timings.tpot_ns(LLMCall(0, 0, 500 * MS, chunks, completion_tokens=4)) is None


@pytest.mark.parametrize("fields", [{"error_kind": "cut"}, {"sent": None}])
def test_failed_and_unsent_calls_have_no_latencies(fields: dict[str, Any]) -> None:
    """Failed and unsent calls have no latencies, whatever they received."""
    call = _call((10, "role"), (200, "content"), (250, "content"), completion_tokens=2, **fields)

    assert [None] * 5 == [
        latency(call) for latency in (timings.ttft_ns, timings.first_event_ns, timings.first_answer_ns, timings.e2e_ns, timings.tpot_ns)
    ]
    assert [] == timings.itl_ns(call)


def test_an_answer_without_output_has_no_first_token() -> None:
    """A stream with only a role and usage has an E2E, but no TTFT."""
    empty = _call((10, "role"), (450, "usage"))

    assert (None, None, 500 * MS) == (timings.ttft_ns(empty), timings.first_answer_ns(empty), timings.e2e_ns(empty))


def test_client_queue() -> None:
    """The client queue is the time from the agent's call to sending, and None if one of them is unknown."""
    assert 20 * MS == timings.client_queue_ns(_call(sent=30, called_ns=10 * MS))
    assert timings.client_queue_ns(_call(sent=30)) is None
    assert timings.client_queue_ns(_call(sent=None, called_ns=10 * MS)) is None


@pytest.mark.parametrize(
    ("fields", "later_ms"),
    [
        ({"idle_since_ns": 90, "head_ns": 105, "first": 113}, 32),  # the head is acknowledged at 145
        ({"idle_since_ns": 61, "head_ns": 105, "first": 113}, 32),
        ({"idle_since_ns": 60, "head_ns": 105, "first": 113}, 0),  # unused for 40 ms
        ({"idle_since_ns": 90, "head_ns": 105, "first": 145}, 0),  # the event is later than the acknowledgement
        ({"idle_since_ns": 90, "head_ns": 105, "first": 105}, 0),  # head and event together
        ({"idle_since_ns": None, "head_ns": 105, "first": 113}, 0),  # a new connection
        ({"idle_since_ns": 90, "head_ns": None, "first": 113}, 0),
        ({"idle_since_ns": 90, "head_ns": 105, "first": None}, 0),
    ],
)
def test_delayed_acknowledgements(fields: dict[str, int | None], later_ms: int) -> None:
    """If a request follows the last data within 40 ms, a client that delays acknowledgements could get the first event later."""
    stamps: dict[str, Any] = {name: value and value * MS for name, value in fields.items()}
    first = stamps.pop("first")
    call = LLMCall(0, 100 * MS, 500 * MS, (Chunk(first, "role"),) if first else (), **stamps)

    assert later_ms * MS == timings.delayed_ack_ns(call)


def test_output_tokens() -> None:
    """Output tokens are the count of the server, even if it is 0, or else the number of output chunks."""
    assert 4 == timings.output_tokens(THINKING)
    assert 9 == timings.output_tokens(_call((1, "content"), completion_tokens=9))
    assert 0 == timings.output_tokens(_call((1, "content"), completion_tokens=0))


def test_late_stamps() -> None:
    """A shared timestamp is late if the read was late or its lag is unknown. The last output chunk of a read is not late."""

    def late(*chunks: Chunk, **keys: Any) -> list[int]:
        return [*LateTimestamps.of(LLMCall(0, 0, 9, chunks, **keys)).places]

    def read(lag: int | None) -> tuple[Chunk, ...]:
        return Chunk(5, "content", False, lag), Chunk(5, "content", False, lag), Chunk(5, "content", True, lag)

    assert [0, 1] == late(*read(PROMPT_NS + 1)) == late(*read(None))
    assert [] == late(*read(PROMPT_NS)) == late(*read(None), error_kind="cut")
    assert [1] == late(Chunk(1, "content", True, 9), *read(None)[1:], Chunk(5, "finish", True))
    assert [] == late(Chunk(5, "content", False), Chunk(5, "finish", True))


def test_clean_stamps() -> None:
    """An output chunk that shares its timestamp with a later output chunk is not clean. Sharing with other chunks does not matter."""
    events = (
        *((1, "role", False), (2, "content", True), (3, "content", False), (3, "content", True)),
        *((4, "content", False), (4, "other", True), (5, "content", False), (5, "finish", False), (5, "usage", True)),
    )
    chunks = tuple(Chunk(at, kind, own) for at, kind, own in events)

    found, cut = LateTimestamps.of(LLMCall(0, 0, 9, chunks)), LateTimestamps.of(LLMCall(0, 0, 9, chunks, error_kind="cut"))

    assert ((4, 5), (0, 0)) == ((found.clean, found.events), (cut.clean, cut.events))


def test_tokens_per_second_of_a_call() -> None:
    """Tokens per second of a call include the wait for the first token."""
    assert 20.0 == timings.tokens_per_s(_call((400, "content"), ended=500, completion_tokens=10))
    assert timings.tokens_per_s(_call(ended=500, error_kind="cut", completion_tokens=10)) is None


def test_the_import_is_light() -> None:
    """Importing metrics loads no HTTP, YAML or numeric library."""
    heavy = "{'aiohttp', 'asyncio', 'numpy', 'pydantic', 'yaml', 'pytest'}"
    code = f"import sys, pytest_agentbench.metrics.timings; print({heavy} & sys.modules.keys())"

    assert "set()\n" == subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("timing", "queued", "served"),
    [
        ({"router_queue_ms": 150.0, "prefill_time_ms": 40.0}, 150.0, 45.0),  # ThunderAgent
        ({"prefill_wait_time_ms": 20.0, "ttft_ms": 190.0}, 20.0, 175.0),  # Dynamo
        ({"router_queue_ms": 0.0}, 0.0, 195.0),
        ({"router_queue_ms": 196.0}, 196.0, 0.0),  # two clocks
        ({"kv_hit_rate": 0.5}, None, None),
        ({"prefill_wait_time_ms": None}, None, None),
        (None, None, None),
    ],
)
def test_the_queue_of_the_server_is_separate(timing: Json | None, queued: float | None, served: float | None) -> None:
    """TTFT includes the wait that the server reports. The wait and the rest of TTFT are separate metrics."""
    call = replace(THINKING, server=timing if timing is None else {"worker_id": None, "timing": timing})

    assert 195 * MS == timings.ttft_ns(call)
    assert (queued, served) == tuple(
        each if each is None else each / MS for each in (timings.server_queue_ns(call), timings.served_ttft_ns(call))
    )


def test_a_failed_call_has_no_server_queue() -> None:
    """A failed call has no server queue and no served TTFT."""
    call = replace(THINKING, server={"timing": {"router_queue_ms": 150.0}}, error_kind="server_error")

    assert (None, None) == (timings.server_queue_ns(call), timings.served_ttft_ns(call))
