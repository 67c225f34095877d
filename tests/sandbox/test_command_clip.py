"""Output as far as it is kept."""

from __future__ import annotations

from pytest_agentbench.sandbox.command import Clip


def clipped(*pieces: bytes, kept: int = 8) -> Clip:
    clip = Clip(kept)
    for piece in pieces:
        clip.add(piece)
    return clip


def test_what_fits_is_whole() -> None:
    """However it comes, up to the last byte."""
    assert ("abcdefgh", 0) == (clipped(b"abcdefgh").text, clipped(b"abcdefgh").omitted)
    assert "abcdefgh" == clipped(*(bytes([each]) for each in b"abcdefgh")).text
    assert "" == clipped().text


def test_the_middle_is_left_out() -> None:
    """Both ends stay, and a line between them says how much was there."""
    for clip in (clipped(b"abcdefghijkl"), clipped(*(bytes([each]) for each in b"abcdefghijkl")), clipped(b"abc", b"defghij", b"kl")):
        assert ("abcd\n[4 bytes left out]\nijkl", 4) == (clip.text, clip.omitted)


def test_bytes_that_are_no_text() -> None:
    """They are replaced, also where a character was cut in two."""
    assert "a\ufffdb" == clipped(b"a\xffb").text
    assert "abc\ufffd\n[6 bytes left out]\n\ufffddef" == clipped(b"abc\xc3\xa4bcde\xc3\xa4def").text
