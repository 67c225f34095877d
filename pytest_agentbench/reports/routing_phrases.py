"""The sentences of reports about which engines answered the calls of a run, and what routers were told about them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_agentbench.backends.session_probe import SessionProbe
from pytest_agentbench.backends.telemetry.engine_calls import EngineCalls
from pytest_agentbench.backends.telemetry.engine_use import EngineUse
from pytest_agentbench.metrics.call_hints import HintUse
from pytest_agentbench.reports.phrases import count, number, percent

NAMED = "named by the answers"


def engine_warning(use: EngineUse, sentence: str) -> str:
    """`arm a: all 12 sessions went to one engine of 4, ...`: a warning about the use of engines, with the arm if there is one."""
    return f"arm {use.arm}: {sentence}" if use.arm else sentence


def calls_at_engines(use: EngineUse) -> str:
    """`15 calls at the engines, 12 at the tap`: the answered calls of both. Calls that a router repeated are the difference.

    Second requests of speculative prefills are named, because they are among the calls at the engines.
    """
    others = f", and {use.uncertain_calls:,} that an engine may have answered (failed or interrupted)" if use.uncertain_calls else ""
    at_engines = f"{use.at_engines:,} calls at the engines" if use.engines else "the engines have no counters of calls"
    prefills = f" and {count(use.second_requests, 'second request')} of speculative prefills" if use.second_requests else ""
    return f"{at_engines}, {use.tap_calls:,} answered calls at the tap{prefills}{others}"


def sessions_stayed(use: EngineUse) -> str:
    """`5 of 12 sessions with more than one call stayed on one engine`. Says so if the answers do not name the engine."""
    if not use.named:
        return "the answers do not name the engine, so it is not known which sessions stayed on one"
    return f"{stayed(use)} sessions with more than one call stayed on one engine" if use.traced else "no session had more than one call"


def calls_of_engines(use: EngineUse) -> str:
    """`15, 5, 13, 4`: the calls of each engine, or of each engine that answers name. A semicolon separates kinds and stages."""
    groups: dict[object, list[int]] = {}
    for engine in use.engines:
        groups.setdefault(engine.group, []).append(engine.calls)
    return "; ".join(", ".join(map(str, calls)) for calls in groups.values() or [use.named.values()])


def stayed(use: EngineUse) -> str:
    """`5 of 12`: the sessions with more than one call that stayed on one engine. `-` if that is unknown."""
    return f"{use.stayed} of {use.traced}" if use.named else "-"


def role_of_hints(use: HintUse) -> str:
    """Returns the role whose calls had hints. The agent itself is `agent`."""
    return use.role or "agent"


def hints_were(use: HintUse) -> str:
    """`agent: 94 % of 320 calls within the hinted output tokens; mean errors 12 tokens, 1.5 remaining calls, 30 ms of pause`."""
    measured = (use.tokens_error, 1, "tokens"), (use.remaining_error, 2, "remaining calls"), (use.next_error_ms, 0, "ms of pause")
    errors = ", ".join(f"{number(value, digits)} {unit}" for value, digits, unit in measured if value is not None)
    calls = count(use.calls, "call")
    counted = f"{calls} with hints" if use.covered is None else f"{percent(use.covered)} of {calls} within the hinted output tokens"
    return f"{role_of_hints(use)}: {counted}" + (f"; mean errors {errors}" if errors else "")


def engine_kind(engine: EngineCalls) -> str:
    """`vllm`, or `vllm, prefill`: the kind of an engine, from its metrics, and whether it has only the prefill stage."""
    notes = ("prefill" if engine.prefill else "", "was restarted, so calls may be missing" if engine.restarted else "")
    return ", ".join(filter(None, (engine.kind, *notes)))


def sessions_at_boot(probes: Mapping[str, SessionProbe]) -> str:
    """Returns how many test sessions stayed on one engine when the backend of each arm booted. Without arms, the only arm is empty.

    With arms: `stayed on one engine: kv 6 of 6, random 0 of 6`.
    """
    if "" in probes:
        return probes[""].text()
    return f"stayed on one engine: {', '.join(f'{arm} {probe.short_text()}' for arm, probe in probes.items())}"
