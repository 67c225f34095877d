"""`agentbench retriever` serves an index that a settings file describes, and its errors are one sentence."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.cli import main
from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.retriever.index import DOCUMENTS, INDEX
from tests import engines

pytestmark = pytest.mark.timeout(180)

TEXT = "Brass lamps were made in the workshops of the old town, where smiths hammered sheets of brass into shades and stands for oil."


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of an engine that provides embeddings."""
    with engines.engine(tmp_path_factory.mktemp("engine"), model="m") as url:
        yield f"{url}/v1"


def written(folder: Path, **settings: Any) -> Path:
    """Writes a file of settings."""
    file = folder / "settings" / "mine.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(settings))
    return file


@contextmanager
def serving(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs the command in a process that is ended with the block."""
    command = [sys.executable, "-m", "pytest_agentbench.cli", "retriever", "serve", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_serve(engine: str, tmp_path: Path) -> None:
    """The command prints its URL and the log next to the settings file, to which paths are relative. Ctrl-C ends it."""
    import httpx

    pytest.importorskip("faiss", reason="NOT TESTED: the extra `retriever` is not installed: pip install 'pytest-agentbench[retriever]'")
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "lamp", "content": TEXT}))
    build = ["retriever", "build", str(tmp_path / "corpus.jsonl"), "--output", str(tmp_path / "index"), "--url", engine, "--model", "m"]
    assert 0 == main(build)
    file = written(tmp_path, index_dir="../index", embeddings={"url": engine, "model": "m", "query_prefix": "Brass lamps: "})
    with serving(file) as process:
        assert process.stdout is not None
        assert f"starts; its log: {file.with_suffix('.log')}\n" == process.stdout.readline()
        serves = re.fullmatch(r"serves at (http://127\.0\.0\.1:\d+); Ctrl-C ends it\n", process.stdout.readline())
        assert serves
        answer = httpx.post(f"{serves[1]}/retrieve", json={"queries": ["zzz"], "eid": "q"})
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)

    assert [["lamp"]] == [[each["id"] for each in documents] for documents in answer.json()]
    assert (0, "no longer served\n") == (process.returncode, rest)
    (line,) = file.with_suffix(".log").read_text().splitlines()
    assert ("q", 1) == (json.loads(line)["scenario"], json.loads(line)["documents"])


@pytest.mark.slow
def test_a_service_that_dies(engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If the service dies before or after it is ready, the command fails. At the start, it prints the end of the log."""
    import psutil

    pytest.importorskip("faiss", reason="NOT TESTED: the extra `retriever` is not installed: pip install 'pytest-agentbench[retriever]'")
    assert 1 == main(["retriever", "serve", str(written(tmp_path, index_dir="gone", embeddings={"url": engine, "model": "m"}))])
    err = capfd.readouterr().err
    assert "`python -m pytest_agentbench.retriever` died before it was ready (exit code 2); the end of mine.log:" in err
    assert f"{tmp_path / 'settings' / 'gone' / DOCUMENTS}: No such file or directory" in err

    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "lamp", "content": TEXT}))
    folder = tmp_path / "settings" / "gone"
    assert 0 == main(["retriever", "build", str(tmp_path / "corpus.jsonl"), "--output", str(folder), "--url", engine, "--model", "m"])
    with serving(tmp_path / "settings" / "mine.yaml") as process:
        assert process.stdout is not None
        assert "serves at" in process.stdout.readline() + process.stdout.readline()
        (child,) = psutil.Process(process.pid).children()
        child.kill()
        assert 1 == process.wait(60)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"index_dir": "index"}, "mine.yaml: the key 'embeddings' is missing"),
        (
            {"embeddings": {"model": "m"}, "pyhton": "x"},
            "mine.yaml: unknown key 'pyhton' (did you mean 'python'?); known keys: index_dir, embeddings, gpu, ",
        ),
        ({"embeddings": {"model": "m"}, "gpu": True, "candidates": 3000}, "candidates must be at most 2048 with `gpu`, not 3000"),
        ({"embeddings": {"model": "m"}, "python": "/nowhere"}, "python: /nowhere is neither an interpreter nor a virtual environment"),
    ],
)
def test_invalid_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], message: str) -> None:
    """With invalid settings, nothing is started."""
    status = main(["retriever", "serve", str(written(tmp_path, **settings))])

    assert status in (1, 4)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "settings" / "mine.log").exists()


def test_an_index_of_another_interpreter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`build --python` runs in another interpreter. A package that is missing there is named."""
    import venv

    venv.create(tmp_path / "bare")

    assert 1 == main(["retriever", "build", "corpus.jsonl", "--model", "m", "--python", str(tmp_path / "bare")])

    assert "No module named 'pydantic'" in capsys.readouterr().err
    assert not (tmp_path / INDEX).exists()
