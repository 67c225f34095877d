"""Computes the metrics that `vllm bench serve` of vLLM 0.32 (backend openai-chat) would report for the calls of a run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.metrics.other_tools.measures import CLOCK, NO_CHOICES, Extent, called_ns, mean, rate
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.quantiles import percentile, series

DIFFERS = (
    "TTFT ends at the first event with choices, including a bare role.",
    "ITL is the gap between such events, so the gaps after a bare role and before a finish reason are included.",
    "TPOT is (latency - TTFT) / (tokens - 1), where latency ends at the last event with choices.",
    "A call failed if it has no event with choices, or if its connection, HTTP status or JSON failed; no percentile includes failed calls.",
    "Any other end counts as a success: an error event within the stream, no finish reason, no text, invalid tool calls.",
    "Throughput is over the time of the whole run, including ramp-up and drain.",
    CLOCK,
)

#: Kinds of failures that the tool does not detect. After an event with choices, such a call counts as a success.
UNDETECTED = (None, "error_event", "incomplete", "empty", "bad_tool_call")


def vllm_bench(calls: Iterable[LLMCall]) -> PeerTable:
    values, extent = series(), Extent()
    good = failed = prompt = generated = 0
    for call in calls:
        extent.add(called_ns(call), call.ended_ns)
        stamps = [chunk.at_ns for chunk in call.chunks if chunk.kind not in NO_CHOICES]
        if call.error_kind not in UNDETECTED or not stamps:
            failed += 1
            continue
        good += 1
        tokens, start = output_tokens(call), called_ns(call)
        prompt += call.prompt_tokens or 0
        generated += tokens
        values["TTFT"].append((stamps[0] - start) / 1e6)
        values["ITL"].extend((later - earlier) / 1e6 for earlier, later in pairwise(stamps))
        values["E2EL"].append((stamps[-1] - start) / 1e6)
        if tokens > 1:
            values["TPOT"].append((stamps[-1] - stamps[0]) / 1e6 / (tokens - 1))
    rows: dict[str, list[float | None]] = {
        "Successful requests": [good],
        "Failed requests": [failed],
        "Benchmark duration (s)": [extent.ns / 1e9],
        "Total input tokens": [prompt],
        "Total generated tokens": [generated],
        "Request throughput (req/s)": [rate(good, extent.ns)],
        "Output token throughput (tok/s)": [rate(generated, extent.ns)],
        "Total token throughput (tok/s)": [rate(prompt + generated, extent.ns)],
    }
    for name in ("TTFT", "TPOT", "ITL", "E2EL"):
        rows[f"Mean {name} (ms)"] = [mean(values[name])]
        rows[f"Median {name} (ms)"] = [percentile(values[name], 50)]
        rows[f"P99 {name} (ms)"] = [percentile(values[name], 99)]
    return PeerTable("vllm bench serve of vLLM 0.32, backend openai-chat", ("",), rows, DIFFERS)
