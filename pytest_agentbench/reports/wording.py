"""How reports say numbers: the same words and digits on the terminal and in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_agentbench.records import Json

TIMINGS = (
    ("ttft_ms", "TTFT"),
    ("itl_ms", "ITL"),
    ("tpot_ms", "TPOT"),
    ("e2e_ms", "E2E"),
    ("client_queue_ms", "client queue"),
    ("rollout_ms", "rollout"),
)
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


def mean_text(mean: Json | None) -> str:
    """`0.612 [0.571, 0.653]`: a mean with its 95 % interval over scenarios."""
    if mean is None:
        return "not measured"
    interval = "(no interval)" if mean["low"] is None else f"[{mean['low']:.3f}, {mean['high']:.3f}]"
    return f"{mean['value']:.3f} {interval}"


def statuses_text(rollouts: Mapping[str, int]) -> str:
    """`97 ok, 3 limit`; what did not happen is left out."""
    return ", ".join(f"{count} {status}" for status, count in rollouts.items() if count) or "none"


def limit_text(limit: Json) -> str:
    """`banking tsq.mean 0.612 >= 0.400: holds`"""
    sign = "<=" if limit["ceiling"] else ">="
    value = "nothing" if limit["value"] is None else f"{limit['value']:.3f}"
    verdict = "FAILS" if limit["failed"] else ("holds" if limit["judged"] else limit["note"])
    why = f"; {limit['note']}" if limit["failed"] and limit["note"] else ""
    return f"{limit['suite']} {limit['name']} {value} {sign} {limit['limit']:g}: {verdict}{why}"


def number(value: Any, digits: int = 1) -> str:
    """A number for a table, `-` for nothing."""
    return "-" if value is None else f"{value:,.{digits}f}"


def throughput_text(performance: Json) -> str:
    """One line on how much was served."""
    ratio = performance["prefix_cache_hit_ratio"]
    flight = performance["rollouts_in_flight"] or {"peak": 0, "mean": 0.0}
    return (
        f"{number(performance['output_tokens_per_s'])} output tok/s, {number(performance['rollouts_per_hour'], 0)} rollouts/h, "
        f"prefix cache hit ratio {'unknown' if ratio is None else f'{ratio:.2f}'}, "
        f"in flight {flight['peak']} peak, {flight['mean']:.1f} mean"
    )


def calls_text(performance: Json) -> str:
    """One line on the calls behind the numbers."""
    failed = ", ".join(f"{count} {kind}" for kind, count in performance["failed_calls"].items())
    calls = f"{performance['calls']} LLM calls{f' ({failed})' if failed else ''} in {performance['span_s']:.1f} s"
    sources, stamps = (", ".join(performance[name]) or "none" for name in ("token_sources", "stamps"))
    return f"{calls}, token counts from {sources}, stamps: {stamps}"


def dataset_text(suite: Json) -> str:
    """One line on what was run, so that nobody takes one data set for another."""
    data = suite["dataset"]
    return f"{data['name']}: {data['size']} scenarios, labels: {data['label_source']}, sha256 {data['sha256'][:12]}"


def tools_text(tools: list[str]) -> str:
    return ", ".join(tools) or "none"
