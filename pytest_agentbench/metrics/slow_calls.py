"""The LLM calls that took longest, from the agent's call to the end of the answer, failed ones included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_agentbench.records import Json, RolloutKey

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice

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


def slowest(part: Slice, most: int = FIVE) -> list[tuple[int, SlowCall]]:
    """Returns the slowest calls, each with its place among all calls of the slice, counted from 0. Of equal ones the first stay."""
    whole = part.calls["whole_ms"]
    places = [int(place) for place in (-whole).argsort(kind="stable")[:most] if whole[place] > 0]
    from pytest_agentbench.metrics.columns import python_value

    columns = {name: part.calls[name] for name in _COLUMNS}
    return [(place, _slow_call({name: python_value(values[place]) for name, values in columns.items()})) for place in places]


_COLUMNS = (
    *("suite", "scenario", "variant", "trial", "attempt", "number", "of", "whole_ms", "until_sent_ms", "ttft_ms", "e2e_ms"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "error_kind"),
)


def _slow_call(row: Json) -> SlowCall:
    first, whole = row["ttft_ms"], row["e2e_ms"]
    prompt, cached = (None if row[name] is None else int(row[name]) for name in ("prompt_tokens", "cached_tokens"))
    return SlowCall(
        rollout=str(RolloutKey(row["suite"], row["scenario"], row["variant"], row["trial"])),
        attempt=row["attempt"],
        number=row["number"],
        of=row["of"],
        total_ms=row["whole_ms"],
        queue_ms=row["until_sent_ms"],
        first_token_ms=first,
        decoding_ms=None if first is None or whole is None else whole - first,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=row["output_tokens"],
        error_kind=row["error_kind"],
    )
