"""Profiles of engines' speed: `python mocker_profile.py NAME` prints the one in profiles/NAME.yaml as vllm-router takes it.

A profile has seven numbers, named as in `--program-scheduling-config-json` of vllm-router. Their units are seconds and thousands of
tokens. `write` turns them into the tables that Dynamo's mocker reads (`--planner-profile-data`), and into a JSON file for vllm-router:

- A prefill of t thousand uncached tokens takes intercept + linear * t + quadratic * t².
- A decoding step takes fixed + batch * (number of requests) + context * (sum of the tokens of their contexts).

The mocker has no place for `decode_throughput_alpha`, because it simulates steps that prefill and decode together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

FOLDER = Path(__file__).parent / "profiles"
PREFILL, DECODE = "prefill_cost_model", "decode_throughput_model"

#: Model -> its numbers.
KEYS = {
    PREFILL: ("intercept_seconds", "linear_seconds_per_1k_tokens", "quadratic_seconds_per_1k_tokens_squared", "decode_throughput_alpha"),
    DECODE: ("fixed_step_seconds", "batch_step_seconds_per_request", "context_step_seconds_per_token"),
}

Profile = Mapping[str, Mapping[str, float]]  # model -> name of a number -> its value

# The mocker interpolates linearly between the points of a table, and continues the line beyond them.
PROMPTS = np.concatenate([[1.0], np.arange(128.0, 131073.0, 128.0)])  # uncached tokens of a step
CONTEXTS = np.geomspace(16, 262144, 71)  # tokens of the average context of a step; neighbours differ by 15 %
TOKENS = np.array([0.0, 1e6])  # sum of the tokens of all contexts, in which a step's duration is linear


def load(name: str) -> Profile:
    """Returns the profile with a name, or in the file with an absolute path. Exits with a message if it is missing or not complete."""
    file = FOLDER / f"{name}.yaml" if "/" not in name else Path(name)
    if not file.is_file():
        sys.exit(f"there is no profile {name!r}; known: {', '.join(sorted(each.stem for each in FOLDER.glob('*.yaml')))}, or a file's path")
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    try:
        if not data["source"]:
            sys.exit(f"{file}: 'source' is empty; say where the numbers come from")
        return {model: {key: float(data[model][key]) for key in keys} for model, keys in KEYS.items()}
    except (KeyError, TypeError, ValueError) as error:
        known = "; ".join(f"{model}: {', '.join(keys)}" for model, keys in KEYS.items())
        sys.exit(f"{file}: {error!r}; a profile has `source` and these numbers: {known}")


def tables(profile: Profile) -> dict[str, Any]:
    """Returns the mocker's tables of a profile as arrays, whose times are in milliseconds.

    A step's average context is the sum of its contexts divided by the number of its requests, so the mocker's two axes give that number.
    """
    intercept, linear, quadratic, _ = (profile[PREFILL][key] for key in KEYS[PREFILL])
    fixed, per_request, per_token = (profile[DECODE][key] for key in KEYS[DECODE])
    thousands = PROMPTS / 1e3
    return {
        "prefill_isl": PROMPTS,
        "prefill_ttft_ms": 1e3 * (intercept + linear * thousands + quadratic * thousands**2),
        "decode_active_kv_tokens": TOKENS,
        "decode_context_length": CONTEXTS,
        "decode_itl": 1e3 * (fixed + per_request * TOKENS[:, None] / CONTEXTS[None, :] + per_token * TOKENS[:, None]),
    }


def write(name: str, folder: Path) -> Path:
    """Writes the tables of a profile to NAME.npz in a folder, and its numbers to NAME.json. Returns the path of the tables.

    A file appears with all its content at once, because engines that start at the same time share it.
    """
    profile, stem = load(name), Path(name).stem
    tables_file, numbers_file = folder / f"{stem}.npz", folder / f"{stem}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as unfinished:
        np.savez(Path(unfinished, tables_file.name), **tables(profile))
        Path(unfinished, numbers_file.name).write_text(json.dumps(profile))
        for file in (tables_file, numbers_file):
            Path(unfinished, file.name).replace(file)
    return tables_file


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(load(sys.argv[1]))}\n")
