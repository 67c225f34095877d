"""Shared prompt prefixes, and the prompt tokens that a perfect prefix cache would save, compared with the server's cache hits.

The numbers are estimates, because a transcript does not contain the tools and the chat template before it. Two values are fitted to the
server's token counts: the tokens before the transcript, and the tokens per character. Like servers, the cache keeps only whole blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_agentbench.records import LLMCall, Rollout
from pytest_agentbench.tables.prompts import prompts

BLOCK = 64  # characters in a block, about 16 tokens as in vLLM
CHARACTERS = 4  # characters per token if no server counts tokens
MOST = 5  # maximum number of prefixes
TAIL = 60  # last characters of a prefix that are shown


@dataclass(frozen=True)
class Prefix:
    """A prefix that the prompts of several rollouts share. If it were a block of text longer, fewer rollouts would share it."""

    group: str  # suite and variant
    model: str
    rollouts: int
    calls: int
    characters: int  # characters of the transcripts; 0 if only the text before them is shared
    tokens: float  # including the text before the transcripts
    ends: str  # its last characters


@dataclass(frozen=True)
class PromptReuse:
    """The reuse of prompts in successful calls of agents: tokens that a perfect prefix cache would save, and those reported as cached."""

    calls: int  # calls with known prompts
    unknown: int  # calls whose prompts are not in the transcripts
    prompt_tokens: float  # prompt tokens of `calls`, as counted by the server, otherwise estimated
    reusable_tokens: float  # estimate of those that a perfect prefix cache would contain
    within_tokens: float  # those of them that an earlier call of the same rollout had sent
    cached_tokens: int | None  # cached tokens reported by the server; None if it reports none
    cached_of: int  # prompt tokens of the calls with such a report
    counted: bool  # whether a server counted the tokens
    prefixes: tuple[Prefix, ...]  # shared by several rollouts; those that save most tokens first


class PromptTree:
    """A tree of the prompts of one model in one suite. Each node is a block of text, and prompts with a common prefix share nodes."""

    def __init__(self) -> None:
        self.parents, self.texts = [0], [""]
        self._calls, self._rollouts = [0], [0]  # calls and rollouts that end at each node
        self._ids: dict[tuple[int, str], int] = {}

    def add(self, text: str, ends: tuple[int, ...]) -> int:
        """Adds the prompts of a rollout: the prefixes of `text` that end before the indexes `ends`.

        Returns how many characters of these prompts repeat an earlier prompt of the rollout. Only whole blocks count.
        """
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
        """Returns two lists: for each node, the number of calls and of rollouts whose prompts contain it. The first node is the root."""
        return self._summed(self._calls), self._summed(self._rollouts)

    def beginning(self, node: int) -> str:
        """Returns the text from the root to the end of a node."""
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
        """Adds to each node the counts of its descendants. Parents have smaller indexes than their children."""
        sums = [*counts]
        for node in range(len(sums) - 1, 0, -1):
            sums[self.parents[node]] += sums[node]
        return sums


class TokenFit:
    """Fits the number of prompt tokens to the length of the transcript by least squares. `add` adds a call, `line` returns the result."""

    def __init__(self) -> None:
        self.calls = 0  # calls whose tokens a server counted
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
        """Returns (tokens before the transcript, tokens per character). Neither is negative."""
        spread = self.calls * self._squares - self._characters**2
        slope = (self.calls * self._products - self._characters * self.tokens) / spread if spread else 0.0
        if not 0 < slope <= 1:
            slope = 1 / CHARACTERS
        before = (self.tokens - slope * self._characters) / self.calls if self.calls else 0.0
        return (before, slope) if before >= 0 else (0.0, self._products / self._squares)


class _Group:
    """The prompts of one model in one suite, and the counts from which their reuse is computed."""

    def __init__(self) -> None:
        self.tree, self.fit = PromptTree(), TokenFit()
        self.calls = 0
        self.uncounted = 0  # characters of prompts whose tokens no server counted
        self.repeated_characters = 0  # characters that an earlier call of the same rollout had sent
        self.repeated_calls = 0  # calls after the first one of a rollout

    def reusable(self) -> tuple[float, float]:
        """Returns how many prompt tokens a perfect cache would already contain, and how many of these the same rollout had sent before."""
        before, slope = self.fit.line()
        calls, _ = self.tree.counts()
        blocks = sum(count - 1 for count, text in zip(calls[1:], self.tree.texts[1:], strict=True) if len(text) == BLOCK)
        return before * (self.calls - 1) + slope * blocks * BLOCK, before * self.repeated_calls + slope * self.repeated_characters

    def prompt_tokens(self) -> float:
        before, slope = self.fit.line()
        return self.fit.tokens + before * (self.calls - self.fit.calls) + slope * self.uncounted

    def prefixes(self) -> Iterator[tuple[int, int, int, float]]:
        """Yields (node, rollouts, calls, tokens) of the longest prefixes that several rollouts share."""
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
    """The prompts of all rollouts read so far. Each text is kept only once, even if many prompts start with it."""

    def __init__(self) -> None:
        self.groups: defaultdict[tuple[str, str], _Group] = defaultdict(_Group)  # (group, model) -> prompts
        self._unknown = 0
        self._cached: int | None = None
        self._cached_of = 0

    def add(self, rollout: Rollout) -> None:
        """Adds the prompts of all attempts of a rollout."""
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
        """Returns how many tokens of all prompts added so far could be reused, and which prefixes rollouts share."""
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
        """Yields the prefixes that save most tokens. Each rollout that shares a prefix saves its tokens, except the first one."""
        shared = [(*prefix, name, group.tree) for name, group in self.groups.items() for prefix in group.prefixes()]
        for node, rollouts, calls, tokens, (group, model), tree in sorted(shared, key=lambda each: -(each[1] - 1) * each[3])[:MOST]:
            text = tree.beginning(node)
            yield Prefix(group, model, rollouts, calls, len(text), tokens, text[-TAIL:])
