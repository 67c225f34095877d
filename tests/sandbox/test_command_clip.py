"""Truncation of the output of commands."""

from __future__ import annotations

from pytest_agentbench.sandbox.command import Clip


def clipped(*pieces: bytes, kept: int = 8) -> Clip:
    clip = Clip(kept)
    for piece in pieces:
        clip.add(piece)
    return clip


def test_short_output_is_complete() -> None:
    """Output up to the limit is kept completely, in whatever pieces it arrives."""
    assert ("abcdefgh", 0) == (clipped(b"abcdefgh").text, clipped(b"abcdefgh").omitted)
    assert "abcdefgh" == clipped(*(bytes([each]) for each in b"abcdefgh")).text
    assert "" == clipped().text


def test_the_middle_is_left_out() -> None:
    """The beginning and the end are kept, with a line between them that says how much is left out."""
    for clip in (clipped(b"abcdefghijkl"), clipped(*(bytes([each]) for each in b"abcdefghijkl")), clipped(b"abc", b"defghij", b"kl")):
        assert ("abcd\n[4 bytes left out]\nijkl", 4) == (clip.text, clip.omitted)


def test_invalid_utf8() -> None:
    """Invalid UTF-8 is replaced, also if a character was split by the truncation."""
    assert "a\ufffdb" == clipped(b"a\xffb").text
    assert "abc\ufffd\n[6 bytes left out]\n\ufffddef" == clipped(b"abc\xc3\xa4bcde\xc3\xa4def").text
