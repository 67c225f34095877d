"""Tokens and the prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.engine.tokens import PrefixCache, Prompt, read_prompt, tokenise


def test_tokens_are_pieces_of_words() -> None:
    """Words are cut after six letters, numbers after three digits, signs stand alone."""
    assert ["The", " transa", "ction", " costs", " $", "123", "4", ".", "50", "!", "\n\n"] == tokenise(
        "The transaction costs $1234.50!\n\n"
    )


@given(st.text())
def test_tokens_lose_nothing(text: str) -> None:
    """The tokens of any text join to that text."""
    assert text == "".join(tokenise(text))


def test_cache_knows_common_beginnings_only() -> None:
    """A prompt is cached up to where it differs from an earlier one, and never as a whole."""
    cache = PrefixCache()

    assert 0 == cache.admit(Prompt(48, [1, 2, 3]))
    assert 32 == cache.admit(Prompt(48, [1, 2, 3]))
    assert 48 == cache.admit(Prompt(49, [1, 2, 3]))
    assert 16 == cache.admit(Prompt(48, [1, 5, 3]))


def test_cache_forgets_the_least_recent_and_ends_first() -> None:
    """A full cache forgets what was used longest ago, and of one prompt its end before its beginning."""
    cache = PrefixCache(capacity=4)
    cache.admit(Prompt(49, [1, 2, 3]))
    cache.admit(Prompt(33, [7, 8]))

    assert 32 == cache.admit(Prompt(49, [1, 2, 3]))


def test_cache_keeps_what_is_used() -> None:
    """A prompt that comes again is recent again."""
    cache = PrefixCache(capacity=4)
    for blocks in ([1, 2], [7, 8], [1, 2], [9]):
        cache.admit(Prompt(33, blocks))

    assert 32 == cache.admit(Prompt(33, [1, 2]))


def test_block_hashes_stand_for_all_text_before() -> None:
    """The same words behind another beginning are other blocks; the same prompt with more behind it begins with the same ones."""
    words = "alpha beta gamma delta " * 20
    one, other = (read_prompt({"messages": [{"role": "user", "content": f"{start} {words}"}]}) for start in ("One", "Two"))
    longer = read_prompt({"messages": [{"role": "user", "content": f"One {words}"}, {"role": "assistant", "content": "Yes."}]})

    assert one.tokens == other.tokens
    assert not set(one.blocks) & set(other.blocks)
    assert one.blocks[:-1] == longer.blocks[: len(one.blocks) - 1]


def test_prompt_counts_everything_the_model_would_read() -> None:
    """Tools, tool calls and the parts of a content count."""
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    parts = [{"type": "text", "text": "and this"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    plain = {"messages": [{"role": "user", "content": "Look"}, {"role": "assistant"}]}
    sizes = [
        read_prompt(request).tokens
        for request in (
            plain,
            {**plain, "tools": [{"type": "function", "function": {"name": "look_up"}}]},
            {"messages": [{"role": "user", "content": "Look"}, {"role": "assistant", "tool_calls": [call]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}, *parts]}, {"role": "assistant"}]},
        )
    ]

    assert all(size > sizes[0] for size in sizes[1:])
