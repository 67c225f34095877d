"""Tokens, and the blocks that they fill."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.engine.token_blocks import read_answered, read_prompt, tokenise
from pytest_agentbench.records import Json


def test_tokens_are_pieces_of_words() -> None:
    """Words are split after six letters and numbers after three digits. Punctuation marks are separate tokens."""
    assert ["The", " transa", "ction", " costs", " $", "123", "4", ".", "50", "!", "\n\n"] == tokenise(
        "The transaction costs $1234.50!\n\n"
    )


@given(st.text())
def test_tokens_lose_nothing(text: str) -> None:
    """The joined tokens of any text equal the text."""
    assert text == "".join(tokenise(text))


def test_block_hashes_include_all_earlier_text() -> None:
    """Equal words after different beginnings are in different blocks. A prompt and its continuation begin with the same blocks."""
    words = "alpha beta gamma delta " * 20
    one, other = (read_prompt({"messages": [{"role": "user", "content": f"{start} {words}"}]}, 16) for start in ("One", "Two"))
    longer = read_prompt({"messages": [{"role": "user", "content": f"One {words}"}, {"role": "assistant", "content": "Yes."}]}, 16)

    assert one.tokens == other.tokens
    assert not set(one.blocks) & set(other.blocks)
    assert one.blocks[:-1] == longer.blocks[: len(one.blocks) - 1]


def test_sizes_of_blocks() -> None:
    """Only full blocks count, from the start of the prompt. The size of blocks does not change the tokens."""
    request = {"messages": [{"role": "user", "content": "alpha beta " * 50}], "tools": [{"type": "function", "function": {"name": "f"}}]}
    prompts = {size: read_prompt(request, size) for size in (1, 16, 64)}

    assert {1: prompts[1].tokens, 16: prompts[1].tokens // 16, 64: prompts[1].tokens // 64} == {
        size: len(prompt.blocks) for size, prompt in prompts.items()
    }
    assert 1 == len({prompt.tokens for prompt in prompts.values()})


def test_prompt_counts_everything_the_model_would_read() -> None:
    """Tools, tool calls and content parts count as part of the prompt."""
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    parts = [{"type": "text", "text": "and this"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    plain = {"messages": [{"role": "user", "content": "Look"}, {"role": "assistant"}]}
    sizes = [
        read_prompt(request, 16).tokens
        for request in (
            plain,
            {**plain, "tools": [{"type": "function", "function": {"name": "look_up"}}]},
            {"messages": [{"role": "user", "content": "Look"}, {"role": "assistant", "tool_calls": [call]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}, *parts]}, {"role": "assistant"}]},
        )
    ]

    assert all(size > sizes[0] for size in sizes[1:])


def test_an_answer_begins_the_next_prompt() -> None:
    """The blocks of a prompt and its answer, with text and calls, are the first of the conversation's next prompt."""
    call = {"id": "1", "type": "function", "function": {"name": "get_balance", "arguments": '{"account": "joint"}'}}
    answer = {"role": "assistant", "content": "I look it up. " * 20, "tool_calls": [call]}
    question: Json = {"messages": [{"role": "user", "content": "What is my balance? " * 10}], "tools": [call]}
    answered = read_answered(question, answer, 16)
    following = read_prompt({**question, "messages": [*question["messages"], answer, {"role": "tool", "content": "12 dollars"}]}, 16)

    assert len(read_prompt(question, 16).blocks) + 5 < len(answered)
    assert answered == following.blocks[: len(answered)]
