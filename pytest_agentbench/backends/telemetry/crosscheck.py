"""Comparison of the counts in a server's metrics with those of the tap (the recording proxy): calls, tokens and mean TTFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_agentbench.backends.telemetry.engine_calls import EngineCalls, calls_of_groups
from pytest_agentbench.backends.telemetry.engine_stats import ServerCounts
from pytest_agentbench.metrics import timings
from pytest_agentbench.records import LLMCall, Rollout

TOKENS = 0.01  # accepted difference of token counts, as a share; one token per call is always accepted
TTFT = 0.2  # accepted difference of mean TTFTs, as a share
TTFT_MS = 5.0  # difference of mean TTFTs in ms that is always accepted, for the network between server and tap


@dataclass
class Client:
    """The calls and tokens that the tap (the recording proxy) has counted in a session, with the calls that tests make by hand."""

    calls: int = 0  # successful calls
    # Calls that an engine may have answered: those that failed, that have no record, or that went to an unknown one of several arms
    uncertain: int = 0
    second: int = 0  # second requests that engines got after successful calls with a speculative prefill
    speculative: bool = False  # whether any call asks for a speculative prefill, so that uncertain ones may have a second request, too
    unknown: int = 0  # attempts and interruptions with an unknown number of calls
    uncounted: int = 0  # successful calls whose answer has no token counts
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_tokens: int = 0  # calls with a first token
    ttft_ns: int = 0  # sum of their TTFTs in ns

    def add(self, rollout: Rollout) -> None:
        """Adds the calls of a rollout. Only attempts of its latest session count, because counters of earlier sessions are not compared."""
        attempts = [attempt for attempt in rollout.attempts if attempt.session == rollout.session]
        self.unknown += sum(attempt.status == "infra_error" and not attempt.calls for attempt in attempts)
        for call in (call for each in attempts for call in (*each.calls, *each.other_calls) if not call.endpoint):
            self.speculative |= call.speculative
            if call.error_kind:
                self.uncertain += 1
            else:
                self._add_call(call)

    def add_unrecorded(self, calls: int | None) -> None:
        """Adds calls that have no record, for example because their rollout was interrupted. None means that their number is unknown."""
        if calls is None:
            self.unknown += 1
        else:
            self.uncertain += calls

    @property
    def hidden(self) -> bool:
        """Whether there were calls whose tokens only the server knows."""
        return bool(self.uncertain or self.unknown)

    def _add_call(self, call: LLMCall) -> None:
        self.calls += 1
        self.second += call.speculative
        self.uncounted += call.prompt_tokens is None or call.completion_tokens is None
        self.prompt_tokens += call.prompt_tokens or 0
        self.output_tokens += call.completion_tokens or 0
        if (ttft := timings.ttft_ns(call)) is not None:
            self.first_tokens += 1
            self.ttft_ns += ttft


def disagreements(server: ServerCounts, client: Client) -> list[str]:
    """Returns a sentence for each count that differs between server and tap by more than the accepted share."""
    if server.kind is None or not client.calls:
        return []
    return [*_tokens(server, client), *_ttft(server, client)]


def call_disagreements(engines: Sequence[EngineCalls], client: Client) -> Iterator[str]:
    """Yields a sentence if engines answered more calls than the tap sent, or fewer than it got answers for.

    Second requests of speculative prefills are added to the calls of the tap, because the counters of engines contain them.

    Engines of one kind and stage stand side by side behind a router, so their counts are added. If a stack has several kinds, one may be
    behind another (workers of Dynamo before the built-in engine), so each kind has to answer at most all calls, and all of them together
    at least all calls. Nothing is compared if an engine was restarted, because its last calls are missing.
    """
    if any(engine.restarted for engine in engines):
        return
    sums = calls_of_groups(engines)
    least = client.calls + client.second
    most = least + client.uncertain * (1 + client.speculative)
    prefills = f" with {client.second:,} second requests of speculative prefills" if client.second else ""
    for (kind, _), calls in sums.items():
        if calls > most and not client.unknown:
            yield (
                f"the engines ({kind}) answered {_calls(calls)}, the tap sent {most:,}{prefills}: a router repeated calls, or another "
                "client used the engines, too"
            )
    decoded = sum(calls for (_, prefill), calls in sums.items() if not prefill)
    if engines and decoded < client.calls:
        yield f"the engines answered {_calls(decoded)}, the tap got {client.calls:,} answers: not all calls reached the sampled engines"
    elif engines and decoded < least:
        yield (
            f"the engines answered {_calls(decoded)}, but {least:,} were expected{prefills}: the server ignores the hint "
            "`speculative_prefill`, or the engines have not got the last of them yet"
        )


def _calls(number: int) -> str:
    return f"{number:,} call{'s' * (number != 1)}"


def _tokens(server: ServerCounts, client: Client) -> Iterator[str]:
    """Yields a sentence for each token count that differs. If calls failed, the server may count more tokens than the tap."""
    if client.uncounted:
        return
    for name, what in (("prompt_tokens", "prompt tokens"), ("output_tokens", "output tokens")):
        theirs, ours = getattr(server, name), getattr(client, name)
        if theirs is None or abs(theirs - ours) <= max(client.calls, TOKENS * ours):
            continue
        if theirs < ours:
            yield f"{server.kind} counts {theirs:,.0f} {what}, the answers' usage {ours:,}: not all calls reached the sampled servers"
        elif not client.hidden:
            yield f"{server.kind} counts {theirs:,.0f} {what}, the answers' usage {ours:,}: another client used the server, too"


def _ttft(server: ServerCounts, client: Client) -> Iterator[str]:
    """Yields a sentence if the mean TTFTs of server and tap differ. They are compared only if both counted the same calls."""
    theirs = server.ttft_ms
    if theirs is None or abs(server.first_tokens - client.first_tokens) > TOKENS * client.first_tokens:
        return
    ours = client.ttft_ns / client.first_tokens / 1e6
    if abs(ours - theirs) > max(TTFT_MS, TTFT * max(ours, theirs)):
        slow, odd = "the difference was spent between server and tap", "the server measured other calls, or a clock is wrong"
        why = slow if theirs < ours else odd
        yield f"{server.kind} reports a mean TTFT of {theirs:.1f} ms, the tap {ours:.1f} ms: {why}"
