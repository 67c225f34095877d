"""The single file of a recording: what it contains, and that it plays as the run does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.recordings.recording import Recording, trim
from tests.recordings.made_recordings import SECOND, MadeCall, asking, made, saying

LONG = "t" * 300


def test_it_has_what_playing_needs(tmp_path: Path) -> None:
    """The file has the same calls, requests and replies, and none of the values that no playable call needs."""
    tools = [{"type": "function", "function": {"name": "find", "description": LONG}}]
    calls = [
        MadeCall(asking("Hi", tools=tools), saying("a")),
        MadeCall(asking("Hi", "Yes?", "A lamp", tools=tools), saying("b"), SECOND, "judge", more={"status": 500}),
    ]
    recording = made(tmp_path, [*calls, MadeCall(asking("only here"), saying("c"))])
    recording.calls.pop()

    trim(recording, {"run": "r"}, tmp_path / "small", str)

    small = Recording(tmp_path / "small")
    assert recording.calls == small.calls
    for call, made_call in zip(small.calls, calls, strict=True):
        assert (("/chat/completions", made_call.body), made_call.reply) == (small.request(call), small.reply(call))
    assert b"only here" not in (tmp_path / "small").read_bytes()


def test_it_is_redacted_once_more(tmp_path: Path) -> None:
    """Secrets of the machine that trims are replaced in messages, tools and facts, and the recording can still be read."""
    recording = made(tmp_path, [MadeCall(asking("hush", tools=[{"hush": LONG}]), saying("a"))])

    trim(recording, {"command": ["hush"]}, tmp_path / "small", lambda text: text.replace("hush", "[redacted]"))

    assert b"hush" not in (tmp_path / "small").read_bytes()
    small = Recording(tmp_path / "small")
    assert asking("[redacted]", tools=[{"[redacted]": LONG}]) == small.request(small.calls[0])[1]


def test_damage(tmp_path: Path) -> None:
    """A damaged file is refused with a sentence."""
    file = made(tmp_path, [MadeCall(asking("Hi"), saying("a"))]).path
    file.write_bytes(file.read_bytes().replace(b'"shop-0"', b'"shop-1"'))

    with pytest.raises(ConfigError, match="is damaged: its checksum does not match"):
        Recording(file)
