"""Humanity's Last Exam, questions with one right answer each: reads hle.jsonl or a parquet file with the same columns, and downloads it.

Its download from the Hugging Face hub is at a pinned revision. It is gated, so users must accept its terms.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.hub_client import one_line_errors, optional
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.agent_leaderboard import entries
from pytest_agentbench.suites.datasets.loaded_scenarios import Selection
from pytest_agentbench.suites.suite import Scenario

REPOSITORY, VARIABLE = "cais/hle", "HF_TOKEN"
URL = f"https://huggingface.co/datasets/{REPOSITORY}"
GATED = f"{REPOSITORY} is gated: accept its terms at {URL}, and set {VARIABLE} to a token of that account"
MISSING = f"{GATED}; then run `agentbench download hle --revision main`"
FILE = "hle.parquet"
SHARDS = re.compile(r"data/test(-\d+-of-\d+)?\.parquet")


def download(revision: str, output: Path) -> list[Path]:
    """Downloads the data set to one file in `output`, prints its sha256 and the commit, and returns a list with its path.

    Raises ConfigError if HF_TOKEN is not set, if the revision has no data, or if the extra `hub` is not installed.
    """
    hub, parquet = optional("huggingface_hub"), optional("pyarrow.parquet")
    token = os.environ.get(VARIABLE)
    if not token:
        raise ConfigError(GATED)
    try:
        with one_line_errors(REPOSITORY, revision):
            info = hub.HfApi(token=token).dataset_info(REPOSITORY, revision=revision)
            names = sorted(each.rfilename for each in info.siblings if SHARDS.fullmatch(each.rfilename))
            if not names:
                raise ConfigError(f"{REPOSITORY} at {info.sha}: no file data/test-*.parquet; choose another --revision")
            shards = [hub.hf_hub_download(REPOSITORY, name, repo_type="dataset", revision=info.sha, token=token) for name in names]
    except AgentbenchError as error:
        raise type(error)(f"{error}. {GATED}" if "GatedRepoError" in str(error) else str(error)) from error
    output.mkdir(parents=True, exist_ok=True)
    file = output / FILE
    incomplete = output / f".incomplete-{FILE}"
    parquet.write_table(parquet.read_table(shards), incomplete)
    incomplete.replace(file)
    print(f"{file}  sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}  revision {info.sha}")
    return [file]


CHOICE = "multipleChoice"
ANSWER_TYPES = ("exactMatch", CHOICE)
SKIP = "skip"
IMAGES = (SKIP, "keep")

#: Required columns, which contain texts. The column `image` is optional.
COLUMNS = ("id", "question", "answer", "answer_type", "category")


def load(file: Path, *, images: str = SKIP) -> Selection:
    """Returns the questions of a file, in its order. Raises ConfigError with the file and the entry of an error.

    With `images: skip`, questions with an image are left out. With `keep`, the image is a part of the message.
    """
    if images not in IMAGES:
        raise ConfigError(f"dataset.options.images must be one of {', '.join(IMAGES)}, not {images!r}")
    chosen: list[Scenario] = []
    left_out = 0
    for where, row in _rows(file):
        _check(row, where)
        if row.get("image") and images == SKIP:
            left_out += 1
        else:
            chosen.append(_scenario(row))
    return Selection(tuple(chosen), {"image questions": left_out} if left_out else {})


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields (position, row). The position is a text for messages, such as `file: row 3`."""
    if file.suffix != ".parquet":
        yield from entries(file)
        return
    try:
        table = optional("pyarrow.parquet").read_table(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: is not a readable parquet file: {' '.join(str(error).split())}") from error
    rows: list[Json] = table.select([name for name in (*COLUMNS, "raw_subject", "image") if name in table.column_names]).to_pylist()
    for number, row in enumerate(rows, 1):
        yield f"{file}: row {number}", row


def _check(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: is a JSON {type(row).__name__}, must be an object")
    for name in COLUMNS:
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ConfigError(f"{where}: {name!r} must be a text that is not empty, not {str(row.get(name))[:80]!r}")
    if row["answer_type"] not in ANSWER_TYPES:
        raise ConfigError(f"{where}: 'answer_type' must be one of {', '.join(ANSWER_TYPES)}, not {row['answer_type']!r}")
    if not isinstance(row.get("image") or "", str):
        raise ConfigError(f"{where}: 'image' must be a URL or a data URI, or empty")


def _scenario(row: Json) -> Scenario:
    names = ("answer", "answer_type", "category")
    return Scenario(
        id=row["id"],
        messages=({"role": "user", "content": _content(row["question"], row.get("image"))},),
        metadata={
            **{name: row[name] for name in names},
            "raw_subject": str(row.get("raw_subject") or ""),
            "label_source": "hle",
        },
    )


def _content(question: str, image: str | None) -> str | list[Json]:
    """Returns the `content` of a Chat Completions message with a question and, if there is one, its image."""
    if not image:
        return question
    return [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": image}}]
