"""Reads files of a run like the scripts of ThunderAgent's paper: the same folders, keys and arithmetic in our own code."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from pytest_agentbench.records import Json


def key_numbers(root: Path) -> Json:
    """Returns the values that the snippet of its README prints about the newest run in `root`.

    Like the snippet, it fails on a rate of null.
    """
    listed = "ls -td evaluation/outputs/hle_local_* | head -1"
    newest = subprocess.run(listed, shell=True, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    data = _combined(root / newest)
    windows = data.get("windows", {}) or {}
    first = next(iter(windows.keys()), None)
    window = windows.get(first, {}) or {}
    metrics, usage = window.get("metrics", {}) or {}, window.get("response_usage", {}) or {}
    return {
        "out_dir": newest,
        "window": first,
        "trials/min": window.get("trials", {}).get("trials_per_sec", 0) * 60 if first else "n/a",
        "steps/sec": (data.get("steps") or {}).get("steps_per_sec"),
        "server_hit_ratio": metrics.get("hit_ratio"),
        "request_hit_avg": usage.get("cached_tokens_ratio_request_avg"),
        "request_hit_token_weighted": usage.get("cached_tokens_ratio_token_weighted"),
        "kv_usage_mean_perc": metrics.get("kv_cache_usage_mean_perc"),
    }


def figure(outputs: Path) -> dict[tuple[str, int], float]:
    """Returns the values that its plot script draws: (method, concurrency) -> steps per minute of the newest run."""
    newest: dict[tuple[str, int], tuple[float, float]] = {}
    for folder in outputs.glob("hle_paper_*"):
        named = re.search(r"hle_paper_(?P<method>[^_]+)_c(?P<c>\d+)_rep(?P<rep>\d+)_", folder.name)
        rate = (_combined(folder).get("steps") or {}).get("steps", {}).get("steps_per_sec")
        if named and isinstance(rate, int | float):
            cell, at = (named["method"], int(named["c"])), folder.stat().st_mtime
            newest[cell] = max(newest.get(cell, (at, 0.0)), (at, float(rate)))
    return {cell: rate * 60 for cell, (_, rate) in newest.items()}


def _combined(folder: Path) -> Any:
    return json.loads((folder / "combined_summary.json").read_text(encoding="utf-8"))
