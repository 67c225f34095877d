"""Messages between stack daemons and holders, and the facts in `stack.json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.backends.stack import protocol
from pytest_agentbench.backends.stack.protocol import FROM_DAEMON, FromDaemon, HoldStack, StackFacts, ToDaemon, read_request
from pytest_agentbench.backends.telemetry.samples import Target
from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.wire import PROTOCOL, header
from pytest_agentbench.records import Endpoint

TO_DAEMON: list[ToDaemon] = [HoldStack(alone=True), protocol.KeepStack(1.5), protocol.StopStack()]

OF_DAEMON: list[FromDaemon] = [
    protocol.HoldAccepted(),
    protocol.HoldDeclined(),
    protocol.BootProgress("engine: waiting for /health"),
    protocol.StackReady(
        Endpoint("http://h/v1", "m", labels={"kind": "dynamo"}), {"boot_s": 1.5}, (Target("engine", 1, "http://h/metrics"),)
    ),
    protocol.BootFailed("no GPU", missing=True),
    protocol.StackEnded("engine ended with exit code 7"),
    protocol.ServicesRestarting(("engine",), {"engine": 2}),
]


def test_there_and_back() -> None:
    """Messages are read back unchanged, with the types of endpoint and metrics."""
    sent = [json_text.loads(json_text.dumps(header(message))) for message in (*TO_DAEMON, *OF_DAEMON)]

    assert TO_DAEMON == [read_request(each) for each in sent[:3]]
    assert OF_DAEMON == [FROM_DAEMON.read(each) for each in sent[3:]]


@pytest.mark.parametrize(
    ("request_header", "sentence"),
    [
        (
            ["HoldStack", {"protocol": PROTOCOL + 1, "for": 60}],
            f"a process speaks protocol {PROTOCOL + 1}, and this one protocol {PROTOCOL}",
        ),
        (["HoldStack", {"protocol": PROTOCOL}], "alone is missing"),
        (["HoldAccepted", {}], "the message 'HoldAccepted' is unknown; known are: HoldStack, KeepStack, StopStack, Refused"),
        ({"op": "hold", "alone": True}, r"\{'alone': True, 'op': 'hold'\} is not a message"),
    ],
)
def test_a_request_that_cannot_be_read(request_header: object, sentence: str) -> None:
    """The reason is a sentence. For another version it has its number, whatever other fields the message has."""
    with pytest.raises(ValueError, match=f"^{sentence}"):
        read_request(request_header)


def test_facts_of_another_version() -> None:
    """The facts of a stack need its name. Other fields may be missing, and unknown ones are kept."""
    facts = StackFacts("small", pid=7, logs=Path("/logs"), keep_s=60.0, boot={"gpus": {}})

    assert facts == codec.read(StackFacts, json.loads(json.dumps(codec.plain(facts))))
    assert StackFacts("small", more={"pids": [1]}) == codec.read(StackFacts, {"backend": "small", "pids": [1]})
