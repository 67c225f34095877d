"""Downloads Humanity's Last Exam from the Hugging Face hub at a pinned revision. It is gated, so users must accept its terms."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.hub_client import one_line_errors, optional

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
