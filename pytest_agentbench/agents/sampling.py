"""The sampling parameters of an agent's settings, which go into every request: what each of them may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import SAMPLING, Json


class Parameter(NamedTuple):
    """What a sampling parameter may be, as a test and in words."""

    allows: Callable[[object], bool]
    words: str


def _number(value: object, least: float, greatest: float = math.inf) -> bool:
    """Whether a value is a finite number in a range; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= greatest and value != math.inf


def _whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of at most 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


PARAMETERS: Mapping[str, Parameter] = {
    "temperature": Parameter(lambda value: _number(value, 0), "a number from 0 up"),
    "top_p": Parameter(lambda value: _number(value, 0, 1), "a number from 0 to 1"),
    "max_tokens": Parameter(lambda value: _whole(value, 1), "a whole number from 1 up"),
    "seed": Parameter(lambda value: _whole(value, -(2**63)), "a whole number"),
    "model": Parameter(lambda value: isinstance(value, str) and value != "", "the name of a model"),
}


def sampling_of(settings: Json) -> Json:
    """The sampling parameters among an agent's settings; raises ConfigError for one of the wrong type or out of range."""
    given = {name: settings[name] for name in SAMPLING if name in settings}
    for name, value in given.items():
        if not PARAMETERS[name].allows(value):
            raise ConfigError(f"agent: {name} should be {PARAMETERS[name].words}, not {value!r}")
    return given
