"""Finds the slowest LLM calls, measured from the agent's call to the end of the answer. Failed calls are included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_agentbench.records import Json, RolloutKey

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice

FIVE = 5


@dataclass(frozen=True)
class SlowCall:
    """An LLM call of an agent with the parts of its duration."""

    rollout: str  # rollout, such as `banking[banking-001]`
    attempt: int  # number of the attempt, counted from 1
    number: int  # number of the call in its attempt, counted from 1
    of: int  # number of calls in its attempt
    total_ms: float  # milliseconds from the agent's call (or from the receipt at the tap if that is unknown) to the end
    queue_ms: float | None  # milliseconds until it was sent, including delays by a rate limit; null if it was not sent
    first_token_ms: float | None  # TTFT in milliseconds; null if there was no token, or if the call failed
    decoding_ms: float | None  # milliseconds from the first token to the end; null if `first_token_ms` is null
    prompt_tokens: int | None  # prompt tokens; null if the server does not report them
    cached_tokens: int | None  # prompt tokens from the prefix cache; null if the server does not report them
    output_tokens: int  # output tokens
    error_kind: str | None  # [kind of failure](metrics.md#failed-calls); null if the call succeeded


def slowest(part: Slice, most: int = FIVE) -> list[tuple[int, SlowCall]]:
    """Returns (index in `part.calls`, call) of the slowest calls of a slice, the slowest first. Equally slow calls keep their order."""
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
