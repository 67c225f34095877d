"""Shared prompt prefixes, and the tokens that a perfect prefix cache would contain."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_agentbench.profile.prefixes import BLOCK, PromptReuse, PromptTrees, TokenFit
from pytest_agentbench.records import Attempt, Json, Rollout
from pytest_agentbench.tables.prompts import prompts
from tests.tables.shop import call, rollout

BEFORE, PER_CHARACTER = 500, 0.5  # tokens of tools and template, and of a character, in the prompts below


def message(role: str, characters: int, letter: str = "x") -> Json:
    """Returns a message whose JSON has the given number of characters."""
    short = {"role": role, "content": ""}
    return {"role": role, "content": letter * (characters - len(json.dumps(short)))}


def asked(scenario: str, *rounds: str, question: int = 4 * BLOCK, letter: str = "x", **changes: object) -> Rollout:
    """Returns a rollout with a call after a question of four blocks, and one after each round, which has four blocks as well."""
    messages = [message("user", question, letter)]
    for each in rounds:
        messages += [message("assistant", 2 * BLOCK - 1, each), message("user", 2 * BLOCK - 1, each)]
    lengths = [question + 4 * BLOCK * number for number in range(len(rounds) + 1)]
    counts = [round(BEFORE + PER_CHARACTER * length) for length in lengths]
    calls = tuple(call(at * 100, at * 100 + 10, end=at * 100 + 50, prompt_tokens=count, **changes) for at, count in enumerate(counts))
    return rollout(scenario, calls=calls, messages=(*messages, {"role": "assistant", "content": "Done."}))


def reuse(*rollouts: Rollout) -> PromptReuse:
    trees = PromptTrees()
    for each in rollouts:
        trees.add(each)
    return trees.reuse()


def test_repeated_prompts_of_a_rollout() -> None:
    """A later prompt of a rollout contains the earlier one, so a cache has its blocks and the tokens before the transcript."""
    found = reuse(asked("shop-0", "a", "b"))
    blocks = 4 + 8  # blocks of the first and of the second prompt

    assert (3, 0, True) == (found.calls, found.unknown, found.counted)
    assert 2 * BEFORE + PER_CHARACTER * blocks * BLOCK == pytest.approx(found.reusable_tokens)
    assert found.reusable_tokens == pytest.approx(found.within_tokens)
    assert () == found.prefixes


def test_prefixes_that_rollouts_share() -> None:
    """If two rollouts share a prefix, the second gets it from the cache, and the prefix is listed with its last characters."""
    found = reuse(asked("shop-0", "a"), asked("shop-1", "b"))
    [prefix] = found.prefixes

    assert ("shop", "m", 2, 4) == (prefix.group, prefix.model, prefix.rollouts, prefix.calls)
    assert 4 * BLOCK == prefix.characters
    assert BEFORE + PER_CHARACTER * prefix.characters == pytest.approx(prefix.tokens)
    assert prefix.ends.endswith('xxx"}')
    between = found.reusable_tokens - found.within_tokens
    assert BEFORE + PER_CHARACTER * 4 * BLOCK == pytest.approx(between)


def test_tokens_before_the_transcript() -> None:
    """Rollouts of one suite and model with different transcripts share only tools and template."""
    questions = asked("shop-0", "a"), asked("shop-1", "b", letter="y")
    [prefix] = reuse(*(replace(each, messages=({"role": each.scenario}, *each.messages)) for each in questions)).prefixes

    assert (0, "") == (prefix.characters // BLOCK, prefix.ends)


def test_suites_share_nothing() -> None:
    """Prompts of two suites, or to two models, share nothing, because their tools and templates differ."""
    same = asked("shop-0", "a")

    assert () == reuse(same, replace(same, suite="bank")).prefixes
    assert () == reuse(same, asked("shop-1", "a", model="n")).prefixes


def test_hits_of_the_server() -> None:
    """The reported cache hits cover only the calls for which the server reports them."""
    told, untold = asked("shop-0", cached_tokens=300), asked("shop-1", cached_tokens=None)

    assert (300, told.calls[0].prompt_tokens) == (reuse(told, untold).cached_tokens, reuse(told, untold).cached_of)
    assert None is reuse(untold).cached_tokens


def test_unknown_prompts() -> None:
    """If a transcript lacks answers, only the first prompt of an attempt is known. Failed calls are ignored."""
    short = replace(asked("shop-0", "a"), messages=asked("shop-0").messages)
    failed = Attempt(1, "infra_error", calls=(call(0, 10, end=20), call(30, end=40, error_kind="cut"), call(50, 60, end=70)))
    again = replace(asked("shop-0", "a"), attempt=2, earlier_attempts=(failed,))

    assert (1, 1) == (reuse(short).calls, reuse(short).unknown)
    assert (3, 1) == (reuse(again).calls, reuse(again).unknown)
    assert 1 == len(prompts(again, failed).ends)


def test_no_counts() -> None:
    """If no server counts tokens, a token has four characters."""
    uncounted = asked("shop-0")
    found = reuse(replace(uncounted, calls=(replace(uncounted.calls[0], prompt_tokens=None),)))

    assert (False, BLOCK) == (found.counted, found.prompt_tokens)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(100, 150), (200, 200)], (100.0, 0.5)),
        ([(100, 125), (100, 125)], (100.0, 0.25)),
        ([(100, 20), (200, 50)], (0.0, 0.24)),
        ([(100, 500), (200, 100)], (262.5, 0.25)),
        ([], (0.0, 0.25)),
    ],
    ids=["line", "one-length", "through-zero", "falls", "nothing"],
)
def test_fit(points: list[tuple[int, int]], expected: tuple[float, float]) -> None:
    """Tokens before the transcript and per character come from a fitted line. If the line is impossible, a token has four characters."""
    fit = TokenFit()
    for characters, tokens in points:
        fit.add(characters, tokens)

    assert expected == pytest.approx(fit.line())


def test_the_part_after_the_last_block() -> None:
    """A cache keeps only whole blocks. If two prompts are equal, the part after the last whole block is not reused."""
    twice = reuse(asked("shop-0", question=4 * BLOCK + 10), asked("shop-1", question=4 * BLOCK + 10))

    assert 10 / 4 == pytest.approx(twice.prompt_tokens / 2 - twice.reusable_tokens)
