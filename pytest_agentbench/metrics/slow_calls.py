"""The LLM calls that took longest, from the agent's call to the end of the answer, failed ones included."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from pytest_agentbench.metrics import timings
from pytest_agentbench.records import Attempt, LLMCall, Rollout

FIVE = 5


@dataclass(frozen=True)
class SlowCall:
    """An LLM call of an agent, and where its time went."""

    rollout: str  # `banking[banking-001]`
    attempt: int  # counted from 1
    number: int  # which call of its attempt, counted from 1
    of: int  # calls of its attempt
    total_ms: float  # from the agent's call, or where that is unknown from the tap's receipt of it, to the end
    queue_ms: float | None  # until it was sent, with the wait for the rate limit; null of one that was not
    first_token_ms: float | None  # TTFT; null of one without a token, and of one that failed
    decoding_ms: float | None  # from there to the end
    prompt_tokens: int | None
    cached_tokens: int | None  # null where the server does not say
    output_tokens: int
    error_kind: str | None  # one of [these](metrics.md#failed-calls); null of one that went well


class SlowCalls:
    """What is kept while rollouts are read: as many as are wanted."""

    def __init__(self, most: int = FIVE) -> None:
        self._most = most
        self._seen = 0
        self._heap: list[tuple[int, int, SlowCall]] = []  # nanoseconds, and minus the place among all calls: of equal ones the first stay

    def add(self, rollout: Rollout, attempt: Attempt, number: int, call: LLMCall) -> None:
        """Takes the next call."""
        total = call.ended_ns - _called_ns(call)
        place, self._seen = self._seen, self._seen + 1
        if total > 0 and (len(self._heap) < self._most or total > self._heap[0][0]):
            heapq.heappush(self._heap, (total, -place, _slow_call(rollout, attempt, number, call)))
            if len(self._heap) > self._most:
                heapq.heappop(self._heap)

    def ranked(self) -> list[tuple[int, SlowCall]]:
        """The slowest first, each with its place among all calls, counted from 0."""
        return [(-place, call) for _, place, call in sorted(self._heap, reverse=True)]


def _called_ns(call: LLMCall) -> int:
    return call.received_ns if call.called_ns is None else call.called_ns


def _slow_call(rollout: Rollout, attempt: Attempt, number: int, call: LLMCall) -> SlowCall:
    first, whole = timings.ttft_ns(call), timings.e2e_ns(call)
    return SlowCall(
        rollout=str(rollout.key),
        attempt=attempt.attempt,
        number=number,
        of=len(attempt.calls),
        total_ms=(call.ended_ns - _called_ns(call)) / 1e6,
        queue_ms=None if call.sent_ns is None else (call.sent_ns - _called_ns(call)) / 1e6,
        first_token_ms=None if first is None else first / 1e6,
        decoding_ms=None if first is None or whole is None else (whole - first) / 1e6,
        prompt_tokens=call.prompt_tokens,
        cached_tokens=call.cached_tokens,
        output_tokens=timings.output_tokens(call),
        error_kind=call.error_kind,
    )
