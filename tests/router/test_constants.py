"""The constants of the routing rule and their presets."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.router.constants import PRESETS, make_constants


def test_changes() -> None:
    """A change replaces one value of a preset."""
    constants = make_constants("sticky", {"temperature_min": 0.05}, "x")

    assert constants == PRESETS["sticky"].model_copy(update={"temperature_min": 0.05})


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("stiky", {}, "x: no preset 'stiky' (did you mean 'sticky'?)"),
        ("nat", {"lints_lamda": 1}, "lints_lamda"),
        ("nat", {"lints_lambda": 0}, "lints_lambda"),
        ("nat", {"temperature_min": 3}, "temperature_min, 3, must not be above temperature_max, 2"),
        ("nat", {"baseline": "none"}, "baseline"),
    ],
)
def test_wrong_constants(preset: str, changes: dict[str, Any], message: str) -> None:
    """Unknown presets and keys, and values outside their range, are errors."""
    with pytest.raises(ConfigError) as error:
        make_constants(preset, changes, "x")

    assert message in str(error.value)
