"""The recorded call for a request: order, places, redacted texts, misses, and what was not asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.recordings.tape import CallPlace, NotRecorded, Tape
from pytest_agentbench.runs.run_file import Playback
from tests.recordings.made_recordings import FIRST, SECOND, MadeCall, asking, made, saying

HERE, THERE = CallPlace(FIRST), CallPlace(SECOND)
CHAT = "/chat/completions"


def redacted(text: str) -> str:
    return text.replace("hush", "[redacted]")


def answers(directory: Path, calls: list[MadeCall], asked: list[tuple[str, CallPlace | None]]) -> list[str]:
    """Returns the answers to requests with these texts."""
    recording = made(directory, calls, redacted)
    tape = Tape(recording, redacted)
    return [recording.reply(tape.find(CHAT, asking(text), place))["choices"][0]["message"]["content"] for text, place in asked]


def test_same_request_again(tmp_path: Path) -> None:
    """The same request gets its recorded answers in their order, for each rollout by itself, and the last one again after that."""
    calls = [MadeCall(asking("Hi"), saying(text), key) for key, text in ((FIRST, "a"), (SECOND, "x"), (FIRST, "b"), (SECOND, "y"))]

    places = [THERE, HERE, HERE, THERE, HERE, THERE]
    assert ["x", "a", "b", "y", "b", "y"] == answers(tmp_path, calls, [("Hi", place) for place in places])


def test_other_rollouts(tmp_path: Path) -> None:
    """A request that its own rollout never made gets the answers of the others, and so does one without a place."""
    calls = [MadeCall(asking("Hi"), saying("a"), FIRST), MadeCall(asking("Hi"), saying("b"), FIRST)]

    assert ["a", "b", "b"] == answers(tmp_path, calls, [("Hi", THERE), ("Hi", None), ("Hi", THERE)])


def test_roles_have_places_of_their_own(tmp_path: Path) -> None:
    """The agent and a role that send the same request get their own answers."""
    calls = [MadeCall(asking("Hi"), saying("a")), MadeCall(asking("Hi"), saying("b"), role="judge")]

    assert ["b", "a"] == answers(tmp_path, calls, [("Hi", CallPlace(FIRST, "judge")), ("Hi", HERE)])


def test_secret_of_the_recording(tmp_path: Path) -> None:
    """A machine without the secret finds the request by its place, in the order of the recording, and in no other rollout."""
    recording = made(tmp_path, [MadeCall(asking("Key hush"), saying("a")), MadeCall(asking("Key hush!"), saying("b"))], redacted)
    tape = Tape(recording, str)

    found = [tape.find(CHAT, asking(text), HERE) for text in ("Key of CI!", "Key of CI!")]
    assert [recording.calls[0], recording.calls[1]] == found
    assert Playback("", 2, 0, 2, 0, 2, 0) == tape.playback
    for body, place in ((asking("key of CI"), HERE), (asking("Key of CI", top_p=1), HERE), (asking("Key of CI"), THERE)):
        with pytest.raises(NotRecorded):
            tape.find(CHAT, body, place)


def test_same_secret_here(tmp_path: Path) -> None:
    """A machine with the secret finds the request by its content, because it redacts as the recording did."""
    tape = Tape(made(tmp_path, [MadeCall(asking("Key hush"), saying("a"))], redacted), redacted)

    tape.find(CHAT, asking("Key hush"), None)
    assert Playback("", 1, 1, 0, 0, 0, 0) == tape.playback


def test_miss(tmp_path: Path) -> None:
    """The sentence names the recorded request with the longest equal beginning, and what differs."""
    calls = [MadeCall(asking("Hi", "Yes?", "A lamp"), saying("a"), SECOND), MadeCall(asking("Hi"), saying("b")), MadeCall(asking("Bye"), 1)]
    tape = Tape(made(tmp_path, calls), str)

    with pytest.raises(NotRecorded) as miss:
        tape.find(CHAT, asking("Hi", "Yes?", "A tree", temperature=1), HERE)

    expected = "call 1 of shop[shop-1]: 'temperature' was not sent, and is now 1; message 3 of 3 was "
    assert str(miss.value).startswith(f"not recorded; the nearest recorded request is {expected}")


def test_miss_of_a_parameter(tmp_path: Path) -> None:
    """With equal messages everywhere, the nearest request is that of the own rollout."""
    calls = [MadeCall(asking("Hi"), saying("a"), key) for key in (FIRST, SECOND)]
    tape = Tape(made(tmp_path, calls), str)

    with pytest.raises(NotRecorded, match=r"call 1 of shop\[shop-1\]: 'seed' was not sent, and is now 1"):
        tape.find(CHAT, asking("Hi", seed=1), THERE)


def test_counts(tmp_path: Path) -> None:
    """Calls that were not asked for count only in rollouts that asked for something, misses included."""
    calls = [MadeCall(asking(text), saying(text), key) for key in (FIRST, SECOND) for text in ("a", "b")]
    tape = Tape(made(tmp_path, calls), str)

    tape.find(CHAT, asking("a"), HERE)
    assert Playback("", 4, 1, 0, 0, 2, 1) == tape.playback
    with pytest.raises(NotRecorded):
        tape.find(CHAT, asking("c"), THERE)
    assert Playback("", 4, 1, 0, 1, 4, 3) == tape.playback


def test_all_apis(tmp_path: Path) -> None:
    """Prompts, inputs and messages of the other APIs are found as well, and models of all of them are listed."""
    calls = [
        MadeCall({"model": "a", "prompt": "Once"}, {}, path="/completions"),
        MadeCall({"model": "b", "input": "Once", "instructions": "i" * 200}, {}, path="/responses"),
        MadeCall({"model": "c", "messages": [{"role": "user", "content": "Once"}], "system": "s" * 200}, {}, path="/messages"),
    ]
    recording = made(tmp_path, calls)
    tape = Tape(recording, str)

    assert recording.calls == [tape.find(call.path, call.body, HERE) for call in calls]
    assert {"a", "b", "c"} == tape.models
