"""How much of a prompt is expected in the cache of an engine."""

from __future__ import annotations

from pytest_agentbench.router.seen_prompts import PIECE, SeenPrompts, blocks_of, prompt_bytes


def test_overlap() -> None:
    """The overlap is the share of blocks from the beginning that the engine has seen."""
    seen = SeenPrompts()
    seen.add(blocks_of(b"a" * PIECE * 2 + b"b" * PIECE))

    assert 1.0 == seen.overlap(blocks_of(b"a" * PIECE * 2))
    assert 0.5 == seen.overlap(blocks_of(b"a" * PIECE * 2 + b"c" * PIECE * 2))
    assert 0.0 == seen.overlap(blocks_of(b"c" + b"a" * PIECE * 3))
    assert 0.0 == seen.overlap([])


def test_a_session_grows() -> None:
    """The next call of a session begins with the blocks of the one before."""
    message = {"role": "user", "content": "x" * 1000}
    first = blocks_of(prompt_bytes({"tools": [{"name": "t"}], "messages": [message]}))
    second = blocks_of(prompt_bytes({"tools": [{"name": "t"}], "messages": [message, message], "temperature": 0}))

    assert first[:-1] == second[: len(first) - 1]
    assert len(second) > len(first)


def test_forgetting() -> None:
    """The blocks that were unused longest are forgotten first, the end of a prompt before its beginning."""
    seen = SeenPrompts()
    seen.set_cache(4, 16)
    old, new = blocks_of(b"a" * PIECE * 3), blocks_of(b"b" * PIECE * 2)
    seen.add(old)
    seen.add(new)

    assert 4 == seen.size == len(seen)
    assert (2 / 3, 1.0) == (seen.overlap(old), seen.overlap(new))
    seen.clear()
    assert 0 == len(seen)
