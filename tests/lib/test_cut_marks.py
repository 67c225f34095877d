"""The marks that replace the missing parts of truncated texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_agentbench.lib.cut_marks import beginning, cuts, ending
from pytest_agentbench.lib.foreign import cut
from pytest_agentbench.lib.standard_streams import Log
from pytest_agentbench.lib.supervisor.program import Output
from pytest_agentbench.sandbox.command import Clip

LONG = "a" * 40_000 + "b" * 40_000


def of_log(text: str) -> str:
    log = Log(2_000)
    log.write(text)
    return log.text


def of_clip(text: str) -> str:
    clip = Clip(2_000)
    clip.add(text.encode())
    return clip.text


def of_program(text: str) -> str:
    output = Output()
    output.add(text.encode())
    return output.text(2_000)


def test_a_beginning_and_an_end() -> None:
    """A truncated text says how much is missing, and one that fits is unchanged. Half a character of UTF-8 becomes U+FFFD."""
    assert ("abc", "abc", "abc") == (beginning("abc", 3), beginning(b"abc", 3), ending("abc", 3))
    assert "ab [1,000 characters left out]" == beginning("ab" + "c" * 1_000, 2)
    assert "a\ufffd [1 bytes left out]" == beginning("aä".encode(), 2)
    assert "[1,000 characters left out] ab" == ending("c" * 1_000 + "ab", 2)


@pytest.mark.parametrize(
    "cutter",
    [
        lambda text: beginning(text, 2_000),
        lambda text: beginning(text.encode(), 2_000),
        lambda text: ending(text, 2_000),
        lambda text: cut(text, 2_000),
        of_log,
        of_clip,
        of_program,
    ],
)
def test_every_cutter_leaves_a_mark(cutter: Callable[[str], str]) -> None:
    """The mark of each truncating function is recognised, including the separators around it."""
    text = cutter(LONG)
    (mark,) = cuts(text)

    assert (text[: mark.start()] + text[mark.end() :]).strip("ab") == ""
    assert len(text) < 4_000
