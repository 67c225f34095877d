"""Reading rewards: valid values, and the errors for all others."""

from __future__ import annotations

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.sandbox.verifier import main_reward, read_rewards


@pytest.mark.parametrize(
    ("files", "rewards"),
    [
        ({"reward.txt": b"1\n"}, {"reward": 1.0}),
        ({"reward.txt": b" 0.25 "}, {"reward": 0.25}),
        ({"reward.txt": b"-1e-3"}, {"reward": -0.001}),
        ({"reward.json": b'{"reward": 0.5, "speed": 3}'}, {"reward": 0.5, "speed": 3.0}),
        ({"reward.json": b'{"passed": true, "clean": false}'}, {"passed": 1.0, "clean": 0.0}),
        ({"reward.json": b'{"reward": 0}', "reward.txt": b"1"}, {"reward": 0.0}),
        ({"reward.json": b'{"reward": 0}', "reward.txt": b"nan"}, {"reward": 0.0}),
    ],
)
def test_rewards(files: dict[str, bytes], rewards: dict[str, float]) -> None:
    """reward.txt has one number. reward.json has several with names, and has priority. True and false are numbers, as in Harbor."""
    assert rewards == read_rewards(files)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "wrote neither reward.json nor reward.txt"),
        ({"ctrf.json": b"{}"}, "wrote neither"),
        ({"reward.txt": b""}, "reward.txt is empty"),
        ({"reward.txt": b" \n"}, "reward.txt is empty"),
        ({"reward.txt": b"nan"}, "reward.txt must be between .*, not 'nan'"),
        ({"reward.txt": b"inf"}, "not 'inf'"),
        ({"reward.txt": b"1e300"}, "not '1e300'"),
        ({"reward.txt": b"0,5"}, "reward.txt must be a number, not '0,5'"),
        ({"reward.txt": b"\xff\xfe1"}, "must be a number"),
        ({"reward.txt": b"passed " * 100}, r"\[\d+ characters left out\]$"),
        ({"reward.json": b"", "reward.txt": b"1"}, "reward.json is empty"),
        ({"reward.json": b"{"}, "is not JSON"),
        ({"reward.json": b'{"reward": NaN}'}, "is not JSON"),
        ({"reward.json": b'{"reward": Infinity}'}, "is not JSON"),
        ({"reward.json": b"1.0"}, "must be an object of names and numbers, not '1.0'"),
        ({"reward.json": b"[1]"}, "must be an object of names and numbers"),
        ({"reward.json": b"{}"}, "must be an object of names and numbers"),
        ({"reward.json": b'{"reward": {"a": 1}}'}, "reward.json: 'reward' must be a number, not {'a': 1}"),
        ({"reward.json": b'{"reward": "1"}'}, "'reward' must be a number, not '1'"),
        ({"reward.json": b'{"reward": null}'}, "'reward' must be a number, not None"),
        ({"reward.json": b'{"reward": 1, "other": 1e16}'}, "'other' must be between"),
        ({"reward.json": b'{"reward": 1' + b"0" * 400 + b"}"}, "reward.json"),
    ],
)
def test_no_rewards(files: dict[str, bytes], words: str) -> None:
    """If a reward is not a finite number, the result is an error with the reason instead of a score."""
    with pytest.raises(InfraError, match=words):
        read_rewards(files)


def test_the_main_reward() -> None:
    """The main reward is the one with the name `reward`, or the only one. Several rewards without that name are an error."""
    assert 0.5 == main_reward({"speed": 3.0, "reward": 0.5})
    assert 3.0 == main_reward({"speed": 3.0})
    with pytest.raises(InfraError, match=r"has several rewards \('speed', 'size'\); call the main one 'reward'"):
        main_reward({"speed": 3.0, "size": 1.0})
