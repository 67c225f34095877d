"""The retriever in its own environment, which has FAISS and a model of sentence-transformers. agentbench runs outside of it."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from pytest_agentbench.backends.doctor import checks
from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.cli import main
from pytest_agentbench.lib.process import foreign_environment
from tests.real.booted_stack import booted

NAME = "retriever-cpu"
PYTHON = home_of(NAME) / "bin" / "python"

#: Saves a model of sentence-transformers with these words, each as a vector of random numbers.
MAKE = """
import sys, torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

torch.manual_seed(1)
words = {word: number for number, word in enumerate(["[UNK]", *sys.argv[2:]])}
tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = Whitespace()
SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=64)]).save(sys.argv[1])
"""

TEXTS = {"lamp": "brass lamps and stands", "chair": "oak chairs and tables", "whale": "blue whales and krill"}

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not is_whole(home_of(NAME)), reason=f"NOT TESTED with its own environment: agentbench env create {NAME}"),
]


@pytest.fixture
def port() -> int:
    """Returns a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        free: int = server.getsockname()[1]
        return free


@pytest.fixture
def project(tmp_path: Path, port: int) -> Path:
    """Returns a folder with a model, an index that was built with it in the environment, and a stack of the retriever and an engine."""
    words = " ".join(TEXTS.values()).split()
    subprocess.run([PYTHON, "-c", MAKE, tmp_path / "model", *dict.fromkeys(words)], env=foreign_environment(), check=True)
    (tmp_path / "corpus.jsonl").write_text("".join(f"{json.dumps({'id': id, 'content': text})}\n" for id, text in TEXTS.items()))
    build = ["retriever", "build", str(tmp_path / "corpus.jsonl"), "--output", str(tmp_path / "index"), "--model", str(tmp_path / "model")]
    assert 0 == main([*build, "--python", NAME])
    settings = '{"index_dir": "{here}/index", "port": {port}, "embeddings": {"model": "{here}/model"}, "least_characters": 0}'
    engine = '{"policy": "lexical", "model": "m", "port": {port}}'
    services = {
        "retriever": {
            "python": NAME,
            "run": ["python", "-m", "pytest_agentbench.retriever", settings],
            "port": port,
            "ready": {"http": "/health"},
        },
        "engine": {"python": "agentbench", "run": ["python", "-m", "pytest_agentbench.engine", engine], "ready": {"http": "/health"}},
    }
    (tmp_path / "both.yaml").write_text(json.dumps({"model": "m", "services": services, "ready": {"tools": "none"}}))
    return tmp_path


def test_a_service_of_a_stack(project: Path, port: int) -> None:
    """The doctor reports nothing as missing.

    The booted retriever returns the nearest document, and its log in the run directory has a line per request.
    """
    file = project / "both.yaml"
    spec = load_backend(str(file), project)
    assert isinstance(spec, StackKind)
    assert [] == [check for check in checks(spec) if check.state == "missing"]
    assert {"packages", "index", "weights"} <= {check.name for check in checks(spec) if check.state == "ok"}

    url = f"http://127.0.0.1:{port}"
    with booted(str(file), project / "logs"):
        answers = [httpx.post(f"{url}/retrieve", json={"queries": ["blue krill"], "topk": 1, "eid": "q1"}, timeout=60) for _ in range(2)]
        log = httpx.get(f"{url}/health").json()["log"]

    assert [["whale"], ["whale"]] == [[document["id"] for document in answer.json()[0]] for answer in answers]
    lines = [json.loads(line) for line in Path(log).read_text().splitlines() if '"scenario"' in line]
    assert [("q1", 1, 1)] * 2 == [(line["scenario"], line["documents"], line["local"]) for line in lines]
    assert str(project / "logs" / "retriever.log") == log
