"""Texts that are too large are truncated, and a line says how many bytes are missing."""

from __future__ import annotations

import pytest

from pytest_agentbench.lib.foreign import USUAL, Sizes, cut, size_of, too_large


def test_usual_sizes() -> None:
    """The sizes of a session without options are those in docs/reference/options.md."""
    assert Sizes(answer=1_048_576, tool_result=1_048_576, reason=65_536, record=16_777_216) == USUAL


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("abc", 3), ("äöü", 6), ("€" * 400_000, 1_200_000), ("\N{GRINNING FACE}x", 5), ("\ud83d", 3), ("ä" * 3_000_000, 6_000_000)],
)
def test_sizes_are_bytes_of_utf8(text: str, size: int) -> None:
    """The size of a text is its number of bytes in UTF-8, including unpaired surrogates."""
    assert size == size_of(text)


def test_a_text_that_fits_is_unchanged() -> None:
    """A text of exactly the maximum size is not truncated."""
    text = "x" * 2048

    assert text is cut(text, 2048)


def test_a_large_text_has_its_beginning_and_its_end() -> None:
    """A truncated text keeps its beginning and its end, 256 bytes less than the size in total, and a line says how much is missing."""
    text = "a" * 5000 + "b" * 5000

    assert f"{'a' * 384}\n[9,232 bytes left out]\n{'b' * 384}" == cut(text, 1024)


def test_a_small_size_keeps_three_quarters() -> None:
    """If the size is below 1 KiB, a truncated text keeps three quarters of it as its beginning and its end."""
    assert f"{'a' * 37}\n[226 bytes left out]\n{'b' * 37}" == cut("a" * 150 + "b" * 150, 100)


def test_no_character_is_cut_in_half() -> None:
    """A character that does not fit completely is left out, and its bytes count as missing."""
    assert f"{'€' * 128}\n[29,232 bytes left out]\n{'€' * 128}" == cut("€" * 10_000, 1024)
    assert f"x{'€' * 127}\n[29,238 bytes left out]\n{'€' * 127}y" == cut(f"x{'€' * 10_000}y", 1024)


def test_a_cut_text_with_a_few_more_words_is_not_cut_again() -> None:
    """A truncated reason that gets a prefix and a place is not truncated a second time."""
    once = f"ValueError: {cut('x' * 100_000, 65_536)} (scorers.py:12)"

    assert once is cut(once, 65_536)


def test_halves_of_characters_do_not_raise() -> None:
    """A text with unpaired surrogates, which no file can contain, is truncated without an error, and they are left out."""
    assert f"{'a' * 96}\n[2,208 bytes left out]\n{'a' * 96}" == cut("a\ud83d" * 600, 1024)


def test_the_reason_names_the_option() -> None:
    """The reason contains the size that was found, the allowed one, and the option that raises it."""
    assert "answer: 314,572,800 bytes, at most 1,048,576 are kept; raise --agentbench-size-answer" == too_large(
        "answer", 314_572_800, 1_048_576, "answer"
    )
    assert too_large("x", 1, 1, "tool_result").endswith("raise --agentbench-size-tool-result")
