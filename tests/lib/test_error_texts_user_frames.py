"""The line of user code at which an exception was raised, and the cause that error texts with the same line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_agentbench.lib.error_texts import cause_of, with_place


def raised(work: Callable[[], object]) -> BaseException:
    """Returns the exception of a function."""
    with pytest.raises(ValueError) as found:  # noqa: PT011 - any message will do
        work()
    return found.value


def test_the_last_frame_of_the_user(tmp_path: Path) -> None:
    """The first line gets the place in the user's file, even if the standard library raised the error. Otherwise it is unchanged."""
    file = tmp_path / "scorers.py"
    file.write_text("import json\n\n\ndef mine(text):\n    return json.loads(text)\n")
    space: dict[str, Callable[[str], object]] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)

    error = raised(lambda: space["mine"]("x"))

    assert "ValueError: no JSON (scorers.py:5)\nmore" == with_place("ValueError: no JSON\nmore", error)
    assert "ValueError: x" == with_place("ValueError: x", ValueError("x"))
    assert isinstance(error, json.JSONDecodeError)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("KeyError: 'a' (scorers.py:5)", "KeyError: 'b' (scorers.py:5)", True),
        ("KeyError: 'a' (scorers.py:5)", "KeyError: 'a' (scorers.py:6)", False),
        ("KeyError: 'a' (scorers.py:5)", "ValueError: 'a' (scorers.py:5)", False),
        ("judge_error: a", "judge_error: b", False),
    ],
)
def test_causes(one: str, other: str, equal: bool) -> None:
    """Exceptions of one type at one place have the same cause. Each text without a place is a cause of its own."""
    assert equal == (cause_of(one) == cause_of(other))
