"""What a verifier wrote as rewards. Nothing but finite numbers is one: whatever else there is measured nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records.score import LARGEST_SCORE, is_score

JSON, TEXT = "reward.json", "reward.txt"
MAIN = "reward"  # the name of the only reward of a reward.txt, and of the main one of a reward.json

_SHOWN = 80  # characters of a value in a sentence


def read_rewards(files: Mapping[str, bytes]) -> dict[str, float]:
    """Name -> reward, from the files that are there; `reward.json` wins over `reward.txt`. Raises InfraError with what is wrong."""
    name = next((each for each in (JSON, TEXT) if each in files), None)
    if name is None:
        raise InfraError(f"the verifier wrote neither {JSON} nor {TEXT} to /logs/verifier, so nothing was measured")
    content = files[name].strip()
    if not content:
        raise InfraError(f"the verifier's {name} is empty, so nothing was measured")
    return _from_json(content) if name == JSON else {MAIN: _from_text(content)}


def main_reward(rewards: Mapping[str, float]) -> float:
    """The one called `reward`, or the only one; raises InfraError where it is not known which one is meant."""
    if MAIN in rewards:
        return rewards[MAIN]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise InfraError(f"the verifier's {JSON} has no {MAIN!r} but {', '.join(map(repr, rewards))}, so the main one is not known")


def _from_text(content: bytes) -> float:
    try:
        return _number(float(content), TEXT, content)
    except ValueError:
        raise InfraError(f"the verifier's {TEXT} should be a number, not {_text(content)}") from None


def _from_json(content: bytes) -> dict[str, float]:
    try:
        rewards = orjson.loads(content)
    except orjson.JSONDecodeError:  # NaN and Infinity, too
        raise InfraError(f"the verifier's {JSON} is no JSON: {_text(content)}") from None
    if not isinstance(rewards, dict) or not rewards:
        raise InfraError(f"the verifier's {JSON} should be names with numbers, not {_text(content)}")
    return {name: _number(value, f"{JSON}: {name!r}", value) for name, value in rewards.items()}


def _number(value: Any, where: str, written: Any) -> float:
    """A number, as which Harbor takes true and false, too."""
    if not isinstance(value, int | float):
        raise InfraError(f"the verifier's {where} should be a number, not {_text(written)}")
    if not is_score(value):
        raise InfraError(f"the verifier's {where} should be between -{LARGEST_SCORE:g} and {LARGEST_SCORE:g}, not {_text(written)}")
    return float(value)


def _text(value: Any) -> str:
    text = repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return beginning(text, _SHOWN)
