"""Messages between pool, controller and tap can be sent and read, and a missing field is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.wire import Messages, header
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import Chunk, KeptCall, LLMCall
from pytest_agentbench.tap.protocol import (
    FROM_TAP,
    TO_TAP,
    AddressCalls,
    Budgets,
    CloseAddress,
    GetTapStats,
    KeptReplies,
    KeptReply,
    OpenAddress,
    PointAt,
    RolloutAccount,
    SpendingLimits,
    TakeReplies,
    TapConfig,
    TapDone,
    TapListening,
    TapPorts,
    TapRefusal,
    TapStats,
    UpstreamFacts,
)
from pytest_agentbench.tap.routing_hints import CallLabel, Label

COUNTS, SECONDS, NAMES = st.integers(0, 2**63 - 1), st.floats(0, 1e9), st.text()
VALUES = st.none() | st.booleans() | COUNTS | NAMES | st.lists(NAMES, max_size=3)
JSON = st.dictionaries(NAMES, VALUES, max_size=3)
HEADERS = st.dictionaries(NAMES, NAMES, max_size=3)
UPSTREAMS = st.builds(UpstreamFacts, NAMES, st.none() | NAMES, st.none() | NAMES, HEADERS, st.none() | SECONDS, st.none() | NAMES)
LIMITS = st.builds(SpendingLimits, st.none() | COUNTS, st.none() | COUNTS, st.none() | SECONDS)
CHUNKS = st.builds(Chunk, COUNTS, NAMES, st.booleans(), st.none() | COUNTS, st.none() | COUNTS)
CALLS = st.builds(
    LLMCall,
    received_ns=COUNTS,
    sent_ns=st.none() | COUNTS,
    ended_ns=COUNTS,
    chunks=st.lists(CHUNKS, max_size=3).map(tuple),
    role=NAMES,
    retry_after_s=st.none() | SECONDS,
    server=st.none() | JSON,
    kept=st.none() | st.builds(KeptCall, NAMES, NAMES, NAMES, NAMES),
)
TO = st.one_of(
    st.builds(PointAt, UPSTREAMS),
    st.builds(
        OpenAddress,
        NAMES,
        upgrade=st.none() | st.booleans(),
        label=st.builds(Label, HEADERS, JSON, st.lists(st.text()).map(tuple), st.lists(st.builds(CallLabel, HEADERS, JSON)).map(tuple)),
        elsewhere=st.none() | UPSTREAMS,
        limits=LIMITS,
        prices=st.none() | st.builds(TokenPrices, NAMES, SECONDS, SECONDS, st.none() | SECONDS),
        account=st.none() | st.builds(RolloutAccount, NAMES, LIMITS),
    ),
    st.builds(TakeReplies, NAMES),
    st.builds(CloseAddress, NAMES),
    st.builds(GetTapStats),
)
FROM = st.one_of(
    st.builds(TapDone),
    st.builds(KeptReplies, st.lists(st.builds(KeptReply, COUNTS, JSON), max_size=3).map(tuple)),
    st.builds(AddressCalls, st.lists(CALLS, max_size=3).map(tuple)),
    st.builds(TapStats, COUNTS, COUNTS, COUNTS),
    st.builds(TapRefusal, NAMES),
)
AT_START = st.one_of(
    st.builds(TapConfig, NAMES, st.builds(Budgets, *[st.none() | SECONDS] * 4), COUNTS),
    st.builds(TapListening, COUNTS, COUNTS),
    st.builds(TapPorts, COUNTS, st.lists(COUNTS).map(tuple), NAMES),
)


@given(st.tuples(st.just(TO_TAP), TO) | st.tuples(st.just(FROM_TAP), FROM))
def test_there_and_back(sent: tuple[Messages[Any], Any]) -> None:
    """A message equals what the receiver reads. Without one of its fields, the error names the field."""
    direction, message = sent
    name, fields = json_text.loads(json_text.dumps(header(message)))

    assert message == direction.read([name, fields])
    for each in fields:
        with pytest.raises(ValueError, match=f"^{each} is missing$"):
            direction.read([name, {other: value for other, value in fields.items() if other != each}])


@given(AT_START)
def test_at_the_start(message: Any) -> None:
    """The messages at the start of a tap equal what the receiver reads."""
    written = json_text.loads(json_text.dumps(codec.plain(message)))

    assert message == codec.received(type(message), written)
