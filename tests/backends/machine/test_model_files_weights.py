"""`agentbench weights get`: the real client against a hub on 127.0.0.1."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub import COMMIT, Hub, hub_client
from tests.web import serving

MODEL = "somebody/some-model"

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("huggingface_hub"),
    reason="NOT TESTED: the extra `hub` is not installed: pip install 'pytest-agentbench[hub]'",
)


FILES = {"config.json": b"{}", "model.safetensors": b"weights", "original/model.pth": b"the same weights"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub("models", MODEL, FILES)) as server:
        yield server


def get(hub: Hub, folder: Path, *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    return hub_client(hub.url, folder, "-m", "pytest_agentbench.cli", "weights", "get", *arguments, token=token)


def test_a_folder_of_its_own(hub: Hub, tmp_path: Path) -> None:
    """Files of the commit behind the revision are downloaded, without other formats of the weights. The folder is printed last."""
    done = get(hub, tmp_path, MODEL, "--to", "model")

    assert 0 == done.returncode, done.stderr
    assert [f"{MODEL} at {COMMIT}: 2 files, 0.0 GB, 0.0 GB to fetch", str(tmp_path / "model")] == done.stdout.splitlines()
    assert b"weights" == (tmp_path / "model" / "model.safetensors").read_bytes()
    assert not (tmp_path / "model" / "original").exists()


def test_the_cache(hub: Hub, tmp_path: Path) -> None:
    """Without a folder, the files are in the hub's cache. Nothing is downloaded twice."""
    first = get(hub, tmp_path, MODEL)
    fetched = list(hub.fetched)
    get(hub, tmp_path, MODEL)

    home = Path(first.stdout.splitlines()[-1])
    assert tmp_path / "home" / "hub" / "models--somebody--some-model" / "snapshots" / COMMIT == home
    assert b"weights" == (home / "model.safetensors").read_bytes()
    assert ["config.json", "model.safetensors"] == sorted(fetched)
    assert fetched == hub.fetched


@pytest.mark.parametrize(
    ("token", "status", "said"),
    [
        ("", 4, "set HF_TOKEN to a token of an account with access"),
        ("of-another", 4, "the account of the token in use has no access to it"),
        ("allowed", 0, ""),
    ],
)
def test_a_gated_model(hub: Hub, tmp_path: Path, token: str, status: int, said: str) -> None:
    """Without a token with access, nothing is downloaded. The error has the page of the licence and the variable to set."""
    hub.gated = True

    done = get(hub, tmp_path, MODEL, "--to", "model", token=token)

    assert status == done.returncode, done.stderr
    if status:
        page = f"{hub.url}/{MODEL}"
        assert f"agentbench: {MODEL} is gated: accept its licence at {page}; {said}" == done.stderr.splitlines()[-1]
        assert [] == hub.fetched


def test_a_disk_that_is_too_small(hub: Hub, tmp_path: Path) -> None:
    """If the disk is too small, nothing is downloaded. The error has the free space and the size."""
    hub.size = 10**18

    done = get(hub, tmp_path, MODEL, "--to", "model")

    assert 1 == done.returncode
    assert " GB free, and the download needs 2000000000.0 GB: free some, or choose a disk with --to or HF_HOME" in done.stderr
    assert [] == hub.fetched


def test_an_unknown_model(hub: Hub, tmp_path: Path) -> None:
    """The error names the hub and the model, and what access to a private model needs."""
    done = get(hub, tmp_path, "somebody/no-model")

    hint = "set HF_TOKEN to a token of an account with access"
    said = f"agentbench: {hub.url} has no model somebody/no-model, or it is private; {hint}"
    assert (4, said) == (done.returncode, done.stderr.splitlines()[-1])
