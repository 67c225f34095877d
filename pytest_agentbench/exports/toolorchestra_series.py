"""What the samplers beside a ToolOrchestra evaluation write: vLLM's counters of its prefix cache over time, and the load of GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from pytest_agentbench.exports.atif_steps import iso
from pytest_agentbench.metrics.places import Origin
from pytest_agentbench.records import Json
from pytest_agentbench.tables import samples
from pytest_agentbench.tables.samples import SampleRow

CACHE, GPU = "prefix_cache_timeseries.csv", "gpu_sm_util_timeseries.csv"
LATENCIES = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds"),
)
SERIES: Mapping[str, str] = {  # column -> series of vLLM
    "hits_total": "vllm:prefix_cache_hits_total",
    "queries_total": "vllm:prefix_cache_queries_total",
    "preemptions_total": "vllm:num_preemptions_total",
    "kv_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "num_requests_running": "vllm:num_requests_running",
    "num_requests_waiting": "vllm:num_requests_waiting",
    **{f"{name}_{part}": f"vllm:{name}_{part}" for name in LATENCIES for part in ("sum", "count")},
}
MEANS = ("kv_cache_usage_perc",)  # of replicas their mean counts, of all others their sum
DELTAS: Mapping[str, str] = {
    "delta_hits": "hits_total",
    "delta_queries": "queries_total",
    "delta_preemptions": "preemptions_total",
    **{f"delta_{name}_{part}": f"{name}_{part}" for name in LATENCIES for part in ("sum", "count")},
}
CACHE_COLUMNS = (
    *("ts_iso", "ts_unix", "hits_total", "queries_total", "delta_hits", "delta_queries", "delta_miss_tokens", "hit_ratio"),
    *("preemptions_total", "delta_preemptions", "kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"),
    *(
        f"{lead}{name}{end}"
        for name in LATENCIES
        for lead, end in (("", "_sum"), ("", "_count"), ("delta_", "_sum"), ("delta_", "_count"), ("", "_mean"))
    ),
)
GPU_COLUMNS = ("ts_iso", "ts_unix", "gpu_index", "sm_util", "mem_util", "mem_used_mib", "mem_total_mib")


def cache_rows(origin: Origin) -> Iterator[Json]:
    """A row for each round of looks at which one of the series is known. What a server told stays until it tells something else."""
    columns = {series: column for column, series in SERIES.items()}
    last_values: dict[tuple[str, int, str, str], float] = {}
    before: Json = {}
    last_turn = 0
    for (_, turn), rows in groupby(_in_turns(origin), key=lambda looked: (looked[1].round, looked[0])):
        before = before if turn == last_turn else {}
        at, last_turn = 0.0, turn
        for _, row in rows:
            if row.series in columns and row.value is not None:
                last_values[row.service, row.replica, row.series, row.labels] = row.value
            at = max(at, row.at)
        if last_values:
            row_now = _row(at, _totals(last_values, columns), before)
            before = row_now
            yield row_now


def _in_turns(origin: Origin) -> Iterator[tuple[int, SampleRow]]:
    """(turn, what was told in it): between two turns others asked the servers, and what they had is in no difference."""
    for row in samples.rows(origin.run, origin.directory):
        if (time := origin.calendar.in_turn(row.at)) is not None:
            yield time.turn, row._replace(at=time.at)


def _totals(last_values: Mapping[tuple[str, int, str, str], float], columns: Mapping[str, str]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for (_, _, series, _), value in last_values.items():
        values[columns[series]].append(value)
    return {column: sum(each) / (len(each) if column in MEANS else 1) for column, each in values.items()}


def _row(at: float, totals: Mapping[str, float], before: Json) -> Json:
    """The columns of a look; differences are to the one before, and at least 0, for a server that was started again counts anew."""
    deltas = {
        delta: max(0.0, totals[name] - before[name]) for delta, name in DELTAS.items() if name in totals and before.get(name) is not None
    }
    row: Json = {"ts_iso": iso(round(at * 1e9)), "ts_unix": at, **totals, **deltas}
    if queries := deltas.get("delta_queries"):
        row["hit_ratio"] = deltas.get("delta_hits", 0.0) / queries
        row["delta_miss_tokens"] = queries - deltas.get("delta_hits", 0.0)
    for name in LATENCIES:
        if count := deltas.get(f"delta_{name}_count"):
            row[f"{name}_mean"] = deltas[f"delta_{name}_sum"] / count
    return row


def gpu_rows(origin: Origin) -> Iterator[Json]:
    """A row for each look at a GPU."""
    gpus = (row for _, row in _in_turns(origin) if row.service == "gpu")
    for (_, labels), rows in groupby(gpus, key=lambda row: (row.round, row.labels)):
        yield _gpu_row(labels, [*rows])


def _gpu_row(labels: str, rows: Sequence[SampleRow]) -> Json:
    values = {row.series: row.value for row in rows}
    return {
        "ts_iso": iso(round(rows[0].at * 1e9)),
        "ts_unix": rows[0].at,
        "gpu_index": labels.removeprefix('gpu="').removesuffix('"'),
        "sm_util": values["sm_percent"],
        "mem_used_mib": values["used_mib"],
        "mem_total_mib": values["total_mib"],
    }


def window_metrics(rows: Sequence[Json], measured: float) -> Json:
    """What the server's counters say of a window of so many measured seconds; null for what it did not tell."""
    hits, queries, preempted = (_sum(rows, name) for name in ("delta_hits", "delta_queries", "delta_preemptions"))
    means = {name: _ratio(_sum(rows, f"delta_{name}_sum"), _sum(rows, f"delta_{name}_count")) for name in LATENCIES}
    return {
        "available": bool(rows),
        "samples_hit": sum("hit_ratio" in row for row in rows),
        "sum_hits_tokens": hits,
        "sum_queries_tokens": queries,
        "hit_ratio": _ratio(hits, queries),
        "kv_cache_usage_mean_perc": _mean(rows, "kv_cache_usage_perc"),
        "num_requests_running_mean": _mean(rows, "num_requests_running"),
        "num_requests_waiting_mean": _mean(rows, "num_requests_waiting"),
        "latency_means_seconds": means,
        "decode_over_e2e_ratio": _ratio(means["request_decode_time_seconds"], means["e2e_request_latency_seconds"]),
        "preemptions": {
            "samples": len([row for row in rows if "delta_preemptions" in row]),
            "sum_delta_preemptions": preempted,
            "delta_preemptions_mean_per_interval": _mean(rows, "delta_preemptions"),
            "preemptions_per_sec": _ratio(preempted, measured),
        },
    }


def _sum(rows: Sequence[Json], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) if values else None


def _mean(rows: Sequence[Json], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None


def _ratio(amount: float | None, whole: float | None) -> float | None:
    return amount / whole if amount is not None and whole else None
