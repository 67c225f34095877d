"""Prompts that begin alike, and the prompt tokens that a perfect prefix cache would spare beside the hits that the server had.

An estimate: transcripts are the prompts, without the tools and the chat template before them. How many tokens a character has, and
how many those have which no transcript tells, is fitted to the server's counts of tokens. A cache keeps whole blocks, as servers' do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_agentbench.records import LLMCall, Rollout
from pytest_agentbench.tables.prompts import prompts

BLOCK = 64  # characters, about the 16 tokens of a block of vLLM
CHARACTERS = 4  # of a token, where no server counts
MOST = 5  # prefixes
TAIL = 60  # characters of a prefix that are shown


@dataclass(frozen=True)
class Prefix:
    """The longest beginning that the prompts of some rollouts share."""

    group: str  # the suite, and its variant
    model: str
    rollouts: int
    calls: int
    characters: int  # of transcripts; 0: only what stands before them is shared
    tokens: float  # with what stands before the transcripts
    ends: str  # its last characters


@dataclass(frozen=True)
class PromptReuse:
    """Of the agents' good calls."""

    calls: int  # whose prompts are known
    unknown: int  # calls whose transcripts do not tell their prompts
    prompt_tokens: float  # of the known ones, as the server counts where it does
    reusable_tokens: float  # of them, those that a perfect prefix cache would have; an estimate
    within_tokens: float  # of those, the ones that an earlier call of the same rollout had asked
    cached_tokens: int | None  # that the server had in its cache; None where it does not say
    cached_of: int  # prompt tokens of the calls of which it says so
    counted: bool  # whether a server counted the tokens
    prefixes: tuple[Prefix, ...]  # those that spare most, between rollouts


class PromptTree:
    """The prompts of one model in one suite, as a tree of blocks: those that begin alike begin with the same nodes."""

    def __init__(self) -> None:
        self.parents, self.texts = [0], [""]
        self._calls, self._rollouts = [0], [0]  # that end at a node
        self._ids: dict[tuple[int, str], int] = {}

    def add(self, text: str, ends: tuple[int, ...]) -> int:
        """A rollout's prompts, each the first so many characters of a text. Gives how many characters stood in an earlier one's blocks."""
        full = [end // BLOCK for end in ends]
        chain = [0]
        for number in range(max(full)):
            chain.append(self._child(chain[-1], text[number * BLOCK : (number + 1) * BLOCK]))
        for end, blocks in zip(ends, full, strict=True):
            rest = text[blocks * BLOCK : end]
            self._calls[self._child(chain[blocks], rest) if rest else chain[blocks]] += 1
        self._rollouts[chain[-1]] += 1
        return (sum(full) - max(full)) * BLOCK

    def counts(self) -> tuple[list[int], list[int]]:
        """Calls and rollouts whose prompts begin with each node; the first node is the beginning of all."""
        return self._summed(self._calls), self._summed(self._rollouts)

    def beginning(self, node: int) -> str:
        """The characters up to the end of a node."""
        texts = []
        while node:
            texts.append(self.texts[node])
            node = self.parents[node]
        return "".join(reversed(texts))

    def children(self) -> list[list[int]]:
        below: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], 1):
            below[parent].append(node)
        return below

    def _child(self, parent: int, text: str) -> int:
        node = self._ids.setdefault((parent, text), len(self.parents))
        if node == len(self.parents):
            self.parents.append(parent)
            self.texts.append(text)
            self._calls.append(0)
            self._rollouts.append(0)
        return node

    def _summed(self, counts: list[int]) -> list[int]:
        """With those of the nodes below; a parent stands before its children."""
        sums = [*counts]
        for node in range(len(sums) - 1, 0, -1):
            sums[self.parents[node]] += sums[node]
        return sums


class TokenFit:
    """Tokens of prompts by least squares: so many before the transcript, and so many for each of its characters."""

    def __init__(self) -> None:
        self.calls = 0  # whose tokens a server counted
        self.tokens = 0
        self._characters = self._squares = self._products = 0

    def add(self, characters: int, tokens: int | None) -> None:
        if tokens:
            self.calls += 1
            self.tokens += tokens
            self._characters += characters
            self._squares += characters**2
            self._products += characters * tokens

    def line(self) -> tuple[float, float]:
        """(tokens before the transcript, tokens a character), none of them negative."""
        spread = self.calls * self._squares - self._characters**2
        slope = (self.calls * self._products - self._characters * self.tokens) / spread if spread else 0.0
        if not 0 < slope <= 1:
            slope = 1 / CHARACTERS
        before = (self.tokens - slope * self._characters) / self.calls if self.calls else 0.0
        return (before, slope) if before >= 0 else (0.0, self._products / self._squares)


class _Group:
    """What is known of the prompts of one model in one suite."""

    def __init__(self) -> None:
        self.tree, self.fit = PromptTree(), TokenFit()
        self.calls = 0
        self.uncounted = 0  # characters of prompts that no server counted
        self.repeated_characters = 0  # characters that the rollout's own earlier calls had asked
        self.repeated_calls = 0  # calls with an earlier one of the same rollout

    def reusable(self) -> tuple[float, float]:
        """(tokens that a perfect cache would have, those of them that the rollout itself had asked)."""
        before, slope = self.fit.line()
        calls, _ = self.tree.counts()
        blocks = sum(count - 1 for count, text in zip(calls[1:], self.tree.texts[1:], strict=True) if len(text) == BLOCK)
        return before * (self.calls - 1) + slope * blocks * BLOCK, before * self.repeated_calls + slope * self.repeated_characters

    def prompt_tokens(self) -> float:
        before, slope = self.fit.line()
        return self.fit.tokens + before * (self.calls - self.fit.calls) + slope * self.uncounted

    def prefixes(self) -> Iterator[tuple[int, int, int, float]]:
        """(node, rollouts, calls, tokens) of the longest beginnings that several rollouts share."""
        before, slope = self.fit.line()
        (calls, rollouts), lengths = self.tree.counts(), self._lengths()
        longest = [True] * len(rollouts)
        for node, parent in enumerate(self.tree.parents[1:], 1):
            longest[parent] &= rollouts[node] < rollouts[parent]
        for node, count in enumerate(rollouts):
            if count > 1 and longest[node] and (tokens := before + slope * lengths[node]):
                yield node, count, calls[node], tokens

    def _lengths(self) -> list[int]:
        lengths = [0]
        for parent, text in zip(self.tree.parents[1:], self.tree.texts[1:], strict=True):
            lengths.append(lengths[parent] + len(text))
        return lengths


class PromptTrees:
    """What is kept while rollouts are read: each text once, however many prompts begin with it."""

    def __init__(self) -> None:
        self.groups: defaultdict[tuple[str, str], _Group] = defaultdict(_Group)  # group and model
        self._unknown = 0
        self._cached: int | None = None
        self._cached_of = 0

    def add(self, rollout: Rollout) -> None:
        """The prompts of all attempts at a rollout."""
        of_model: defaultdict[str, list[tuple[LLMCall, int]]] = defaultdict(list)
        text = ""
        for attempt in rollout.attempts:
            text, calls, ends = prompts(rollout, attempt)
            self._unknown += len(calls) - len(ends)
            for call, end in zip(calls, ends, strict=False):
                of_model[call.model].append((call, end))
        for model, calls_of_model in of_model.items():
            self._add(self.groups[rollout.key.group, model], text, calls_of_model)

    def _add(self, group: _Group, text: str, calls: list[tuple[LLMCall, int]]) -> None:
        group.calls += len(calls)
        group.repeated_calls += len(calls) - 1
        group.repeated_characters += group.tree.add(text, tuple(end for _, end in calls))
        for call, end in calls:
            group.fit.add(end, call.prompt_tokens)
            if not call.prompt_tokens:
                group.uncounted += end
            if call.cached_tokens is not None:
                self._cached = (self._cached or 0) + call.cached_tokens
                self._cached_of += call.prompt_tokens or 0

    def reuse(self) -> PromptReuse:
        """What the prompts have in common."""
        reusable = [group.reusable() for group in self.groups.values()]
        return PromptReuse(
            calls=sum(group.calls for group in self.groups.values()),
            unknown=self._unknown,
            prompt_tokens=sum(group.prompt_tokens() for group in self.groups.values()),
            reusable_tokens=sum(whole for whole, _ in reusable),
            within_tokens=sum(within for _, within in reusable),
            cached_tokens=self._cached,
            cached_of=self._cached_of,
            counted=any(group.fit.calls for group in self.groups.values()),
            prefixes=tuple(self._prefixes()),
        )

    def _prefixes(self) -> Iterator[Prefix]:
        """Those that spare most: all rollouts but the first have theirs from the cache."""
        shared = [(*prefix, name, group.tree) for name, group in self.groups.items() for prefix in group.prefixes()]
        for node, rollouts, calls, tokens, (group, model), tree in sorted(shared, key=lambda each: -(each[1] - 1) * each[3])[:MOST]:
            text = tree.beginning(node)
            yield Prefix(group, model, rollouts, calls, len(text), tokens, text[-TAIL:])
