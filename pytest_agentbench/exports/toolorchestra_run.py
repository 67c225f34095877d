"""Exports runs as directories of ToolOrchestra's HLE evaluation: a file for each task, time series of server metrics, and summaries."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pytest_agentbench.exports.atif import iso
from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.files import ChosenRuns, FileNames
from pytest_agentbench.exports.toolorchestra import USAGE, task
from pytest_agentbench.metrics import data_columns
from pytest_agentbench.metrics.columns import Origin, RolloutPlace
from pytest_agentbench.metrics.performance import Offsets
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import Json, arm_of
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.tables import places
from pytest_agentbench.tables.run_tables import SampleRow, rows_of_samples

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
MEANS = ("kv_cache_usage_perc",)  # columns that are means over replicas; all others are sums
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
    """Yields a row of prefix_cache_timeseries.csv for each time at which the server's metrics were read, from the first known value on.

    A value is kept until the server reports another one.
    """
    columns = {series: column for column, series in SERIES.items()}
    last_values: dict[tuple[str, int, str, str], float] = {}
    before: Json = {}
    last_block = 0
    for (_, block), rows in groupby(_samples_in_blocks(origin), key=lambda each: (each[1].round, each[0])):
        before = before if block == last_block else {}
        at, last_block = 0.0, block
        for _, row in rows:
            if row.series in columns and row.value is not None:
                last_values[row.service, row.replica, row.series, row.labels] = row.value
            at = max(at, row.at)
        if last_values:
            row_now = _row(at, _totals(last_values, columns), before)
            before = row_now
            yield row_now


def _samples_in_blocks(origin: Origin) -> Iterator[tuple[int, SampleRow]]:
    """Yields (number of the block, metrics sample). If the run has arms, a block is a stretch of time in which only one arm ran.

    Samples from outside the blocks of the arm are left out, because then other arms used the servers.
    """
    for row in rows_of_samples(origin.run, origin.directory):
        if (time := origin.calendar.in_block(row.at)) is not None:
            yield time.block, row._replace(at=time.at)


def _totals(last_values: Mapping[tuple[str, int, str, str], float], columns: Mapping[str, str]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for (_, _, series, _), value in last_values.items():
        values[columns[series]].append(value)
    return {column: sum(each) / (len(each) if column in MEANS else 1) for column, each in values.items()}


def _row(at: float, totals: Mapping[str, float], before: Json) -> Json:
    """Returns a row of prefix_cache_timeseries.csv: the totals at a time, and their differences to the row before.

    A restarted server counts from 0, so negative differences are set to 0.
    """
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
    """Yields a row of gpu_sm_util_timeseries.csv for each GPU and each time at which it was sampled."""
    gpus = (row for _, row in _samples_in_blocks(origin) if row.service == "gpu")
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
    """Summarises the server's metrics in a window, given its rows of prefix_cache_timeseries.csv. Unknown values are None.

    `measured` is the length in seconds of the part of the window before the end of the run.
    """
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


WINDOW: Offsets = (600, 7800)  # seconds, the window of the evaluation; used if a run has none
FOLDER = "hle_local_"  # prefix of a run's directory; the evaluation's README reads `evaluation/outputs/hle_local_*`


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a directory for each run, or for each of its arms. Tasks of later trials have subdirectories."""
    for origin in chosen.origins:
        run = chosen.run_of(origin)
        arms = chosen.split_by_arm(origin, run, "arm")
        for arm, (own, _) in arms.items():
            write_run(directory / f"{FOLDER}{origin.run}-{arm}", own, run, arm, exact=chosen.exact)
        if not arms:
            write_run(directory / f"{FOLDER}{origin.run}", origin, run, exact=chosen.exact)


def write_run(folder: Path, origin: Origin, run: Run, arm: str = "", *, exact: bool) -> None:
    """Writes all files of a run, or of one of its arms. Times come from the `calendar` of the origin.

    `exact`: texts in CSV files that spreadsheets treat as formulas are written unchanged.
    """
    folder.mkdir(exist_ok=True)
    own = (place for place in places(origin) if not arm or arm_of(place.rollout.variant) == arm)
    steps, ends, usage = _write_tasks(own, run, folder)
    (folder / USAGE).write_text("".join(json.dumps(each) + "\n" for each in usage), encoding="utf-8")
    samples = [*cache_rows(origin)]
    write_rows(folder / CACHE, CACHE_COLUMNS, ([_cell(row.get(name)) for name in CACHE_COLUMNS] for row in samples), exact=exact)
    write_rows(folder / GPU, GPU_COLUMNS, ([_cell(row.get(name)) for name in GPU_COLUMNS] for row in gpu_rows(origin)), exact=exact)
    for name, summary in _summaries(run.settings.window or WINDOW, usage, samples, steps, ends).items():
        (folder / name).write_text(json.dumps(summary, indent=2, allow_nan=False), encoding="utf-8")


def _cell(value: object) -> object:
    """Returns a value for a CSV file: `nan` if it is missing, as in ToolOrchestra's time series."""
    return "nan" if value is None else value


def _write_tasks(rollouts: Iterable[RolloutPlace], run: Run, folder: Path) -> tuple[list[float], list[float], list[Json]]:
    """Writes a task's file for each rollout of a scenario.

    Returns the times at which steps and tasks ended (seconds since 1970), and the usage records of calls, all sorted by time.
    """
    names, steps, ends, usage = FileNames(), list[float](), list[float](), list[Json]()
    for place in rollouts:
        rollout = place.rollout
        if rollout.kind == "scenario":
            usage += _usage(place)
        if rollout.kind == "scenario" and rollout.status != "cancelled":
            steps += _steps(place)
            ends += [end / 1e9 for end in [place.origin.calendar.epoch_ns(rollout.session, rollout.ended_ns)] if end is not None]
            inside = folder / rollout.key.group if len(run.suites) > 1 else folder
            inside = inside if rollout.trial == 1 else inside / f"trial_{rollout.trial}"
            inside.mkdir(parents=True, exist_ok=True)
            (inside / f"{names.of(rollout.scenario)}.json").write_text(
                json.dumps(task(rollout, run), ensure_ascii=False, default=str), encoding="utf-8"
            )
    return sorted(steps), sorted(ends), sorted(usage, key=lambda each: float(each["ts_unix"]))


def _steps(place: RolloutPlace) -> Iterator[float]:
    """Yields the end of each step of a rollout, seconds since 1970."""
    ends = (place.origin.calendar.epoch_ns(place.rollout.session, end) for end in place.rollout.steps_ns)
    yield from (end / 1e9 for end in ends if end is not None)


def _usage(place: RolloutPlace) -> Iterator[Json]:
    """Yields a usage record (a line of USAGE) for each successful call of an agent whose tokens and time are known."""
    rollout = place.rollout
    for row in data_columns.call_rows(place):
        call, ended, prompt = row.call, row.epoch_s(row.call.ended_ns), row.call.prompt_tokens
        if not call.measured or call.error_kind is not None or ended is None or prompt is None:
            continue
        cached = call.cached_tokens or 0
        yield {
            "ts_unix": ended,
            "ts_iso": iso(round(ended * 1e9)),
            "req_id": f"{rollout.scenario}-{rollout.trial}-{row.attempt.attempt}-{row.number}",
            "base_url": None,
            "model": call.answered_by or call.model,
            "prompt_tokens": prompt,
            "completion_tokens": output_tokens(call),
            "total_tokens": prompt + output_tokens(call),
            "cached_tokens": cached,
            "cached_tokens_ratio": cached / prompt if prompt else None,
            "cached_tokens_inferred": call.cached_tokens is None,
        }


def _summaries(
    window: Offsets, usage: Sequence[Json], samples: Sequence[Json], steps: Sequence[float], ends: Sequence[float]
) -> dict[str, Json]:
    """Returns name of a summary file -> its content. `window` is the measured window, seconds after the first request."""
    first = next((each["ts_unix"] for each in usage if each["prompt_tokens"] > 0), None)
    if first is None:
        nothing: Json = {"ok": False, "reason": "no_t0", "windows": None}
        return dict.fromkeys(("window_summary.json", "steps_summary.json", "combined_summary.json"), nothing)
    last = max([usage[-1]["ts_unix"], *ends[-1:]])
    began = {"t0_first_request_unix": first, "t0_first_request_iso": iso(round(first * 1e9))}
    whole_run = math.ceil(last - first)
    start, end = window[0], max(window[0], whole_run) if window[1] is None else window[1]
    spans = dict.fromkeys(((start, end), (0, whole_run)))
    windows = {f"{low:g}-{high:g}": _window((first + low, first + high), last, usage, samples, ends) for low, high in spans}
    counted = _per_second(steps, (first + start, first + end), last)
    inside = {"available": bool(steps), "step_complete_lines_parsed": len(steps), "step_complete_in_window": counted["count"]}
    rates = {"steps_per_sec": counted["rate"], "source_log": None}
    whole = _per_second(steps, (first, last), last)
    step_summary = {
        "ok": True,
        "t0_unix": first,
        "t_start_unix": first + start,
        "t_end_unix": first + end,
        "steps": {**inside, **_lengths(counted), **rates, "steps_per_sec_whole_run": whole["rate"]},
    }
    paths = {"metrics_csv": CACHE, "usage_jsonl": USAGE, "gpu_util_csv": GPU}
    return {
        "window_summary.json": {"ok": True, **began, "windows": windows},
        "steps_summary.json": step_summary,
        "combined_summary.json": {
            "ok": True,
            **began,
            "windows": windows,
            "steps": {**step_summary, "steps_per_sec": counted["rate"]},  # the key that the evaluation's own snippet reads
            "paths": paths,
        },
    }


def _window(span: tuple[float, float], last: float, usage: Sequence[Json], samples: Sequence[Json], ends: Sequence[float]) -> Json:
    start, end = span
    done = _per_second(ends, span, last)
    within = [each for each in usage if start <= each["ts_unix"] <= end]
    ratios = [each["cached_tokens_ratio"] for each in within if each["cached_tokens_ratio"] is not None]
    prompt, cached = (sum(each[name] for each in within) for name in ("prompt_tokens", "cached_tokens"))
    inside = [each for each in ends if start <= each <= end]
    return {
        "window_start_unix": start,
        "window_start_iso": iso(round(start * 1e9)),
        "window_end_unix": end,
        "window_end_iso": iso(round(end * 1e9)),
        "metrics": window_metrics([row for row in samples if start <= row["ts_unix"] <= end], done["measured"]),
        "response_usage": {
            "available": bool(within),
            "responses": len(within),
            "sum_cached_tokens": cached,
            "sum_prompt_tokens": prompt,
            "cached_tokens_ratio_token_weighted": cached / prompt if prompt else None,
            "cached_tokens_ratio_request_avg": sum(ratios) / len(ratios) if ratios else None,
        },
        "trials": {
            "available": bool(ends),
            "marker_lines_parsed": len(ends),
            "trials_completed_in_window": done["count"],
            **_lengths(done),
            "trials_per_sec": done["rate"],
            "first_marker_unix": inside[0] if inside else None,
            "last_marker_unix": inside[-1] if inside else None,
            "source_log": None,
        },
    }


def _per_second(moments: Sequence[float], span: tuple[float, float], last: float) -> Mapping[str, Any]:
    """Returns the number and the rate per second of events in a window, and its length, whole (`nominal`) and `measured`.

    All times are seconds since 1970: `moments` of the events, `span` of the window, `last` of the end of the run. The rate refers to
    the part of the window before `last`, and is 0 if there is none, as in the evaluation.
    """
    start, end = span
    count = sum(start <= moment <= end for moment in moments)
    measured = max(0.0, min(end, last) - start)
    return {"count": count, "nominal": end - start, "measured": measured, "rate": count / measured if measured else 0.0}


def _lengths(counted: Mapping[str, Any]) -> Json:
    return {"window_duration_sec": counted["nominal"], "measured_duration_sec": counted["measured"]}
