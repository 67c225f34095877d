"""Whether a server's own counts agree with what the tap saw; where they do not, neither should be believed unseen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_agentbench.backends.telemetry.engine_stats import ServerCounts
from pytest_agentbench.metrics import timings
from pytest_agentbench.records import LLMCall, Rollout

TOKENS = 0.01  # share by which token counts may differ; in any case by one a call
TTFT = 0.2  # share by which mean TTFTs may differ
TTFT_MS = 5.0  # by which they may differ in any case: the way between server and tap


@dataclass
class Client:
    """What the tap saw of all rollouts, those that tests made by hand included."""

    calls: int = 0  # that went well
    hidden: int = 0  # calls that failed, or have no record, and attempts without any: nobody but the server knows their tokens
    uncounted: int = 0  # calls that went well, and of which the server did not say how many tokens they had
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_tokens: int = 0
    ttft_ns: int = 0  # all together

    def add(self, rollout: Rollout) -> None:
        """Takes a rollout of this session; attempts of earlier ones had another backend's counters."""
        attempts = [attempt for attempt in rollout.attempts if attempt.session == rollout.session]
        self.hidden += sum(attempt.status == "infra_error" and not attempt.calls for attempt in attempts)
        for call in (call for each in attempts for call in (*each.calls, *each.other_calls) if not call.endpoint):
            if call.error_kind:
                self.hidden += 1
            else:
                self._add_call(call)

    def add_unrecorded(self, calls: int | None) -> None:
        """Takes the calls of what was broken off, by an interruption say, and has no record; None: nobody knows how many they are."""
        self.hidden += 1 if calls is None else calls

    def _add_call(self, call: LLMCall) -> None:
        self.calls += 1
        self.uncounted += call.prompt_tokens is None or call.completion_tokens is None
        self.prompt_tokens += call.prompt_tokens or 0
        self.output_tokens += call.completion_tokens or 0
        if (ttft := timings.ttft_ns(call)) is not None:
            self.first_tokens += 1
            self.ttft_ns += ttft


def disagreements(server: ServerCounts, client: Client) -> list[str]:
    """A sentence for each count that differs by more than can be explained."""
    if server.kind is None or not client.calls:
        return []
    return [*_tokens(server, client), *_ttft(server, client)]


def _tokens(server: ServerCounts, client: Client) -> Iterator[str]:
    """Tokens that only the server counted may be those of calls that failed; tokens that only the tap counted have no excuse."""
    if client.uncounted:
        return
    for name, what in (("prompt_tokens", "prompt tokens"), ("output_tokens", "output tokens")):
        theirs, ours = getattr(server, name), getattr(client, name)
        if theirs is None or abs(theirs - ours) <= max(client.calls, TOKENS * ours):
            continue
        if theirs < ours:
            yield f"{server.kind} counts {theirs:,.0f} {what}, usage {ours:,}: not all calls reached what is sampled"
        elif not client.hidden:
            yield f"{server.kind} counts {theirs:,.0f} {what}, usage {ours:,}: somebody else used the server, too"


def _ttft(server: ServerCounts, client: Client) -> Iterator[str]:
    """Compared only when both speak of the same calls."""
    theirs = server.ttft_ms
    if theirs is None or abs(server.first_tokens - client.first_tokens) > TOKENS * client.first_tokens:
        return
    ours = client.ttft_ns / client.first_tokens / 1e6
    if abs(ours - theirs) > max(TTFT_MS, TTFT * max(ours, theirs)):
        why = "the difference was spent on the way" if theirs < ours else "it speaks of other calls, or one of the clocks is wrong"
        yield f"{server.kind} says a mean TTFT of {theirs:.1f} ms, the tap {ours:.1f} ms: {why}"
