"""The settings of the router's process."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.router.config import RouterConfig, parse_config
from pytest_agentbench.router.constants import PRESETS

ONE = "http://127.0.0.1:1"


def test_engines() -> None:
    """Engines are a list, or a text with commas. The preset is `sticky` unless another is named."""
    assert [ONE, "http://h:2"] == parse_config({"engines": f"{ONE}, http://h:2"}, RouterConfig).engines
    assert PRESETS["sticky"] == parse_config({"engines": [ONE]}, RouterConfig).rule()
    assert 0.5 == parse_config({"engines": [ONE], "preset": "nat", "constants": {"beta_weight": 0.5}}, RouterConfig).rule().beta_weight


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "engines"),
        ({"engines": []}, "engines"),
        ({"engines": ["127.0.0.1:1"]}, "http://127.0.0.1:8001"),
        ({"engines": [f"{ONE}/v1"]}, "the URL of an engine without a path"),
        ({"engines": [ONE, ONE]}, f"{ONE} is there twice"),
        ({"engines": ONE, "preset": "nut"}, "no preset 'nut' (did you mean 'nat'?)"),
        ({"engines": ONE, "constants": {"temperature": 1}}, "temperature"),
        ({"engines": ONE, "seed": -1}, "seed"),
        ({"engines": ONE, "pot": 1}, "pot"),
        ("no object", "router config"),
    ],
)
def test_wrong_settings(settings: Any, message: str) -> None:
    """Settings that cannot be used are errors that name the key."""
    with pytest.raises(ConfigError) as error:
        parse_config(settings, RouterConfig)

    assert message in str(error.value)


def test_a_process_with_wrong_settings(tmp_path: Any) -> None:
    """The process ends with a sentence about its settings, and without a traceback."""
    child = Child("pytest_agentbench.router", {"engines": ONE, "preset": "nut"}, tmp_path / "router.log")
    with pytest.raises(Exception, match="no preset 'nut'"):
        child.ready(Listening)
    child.stop()

    assert "Traceback" not in (tmp_path / "router.log").read_text()
