"""Indexes: those that were built here or by other programs can be read, and files that do not match are refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.retriever.index import DOCUMENTS, INDEX, Index, read_allowed, read_corpus
from tests.retriever.conftest import TEXTS, documents


def test_a_built_index(index_dir: Path) -> None:
    """`agentbench retriever build` writes both files. The documents are complete and in order."""
    index = Index.read(index_dir)

    assert documents() == [*index.documents]
    assert 512 == index.dimensions


def test_an_index_of_another_program(tmp_path: Path) -> None:
    """Any kind of FAISS index can be read, here one in half precision. Its vector n belongs to line n of eval.jsonl."""
    faiss = pytest.importorskip("faiss")
    vectors = np.eye(4, dtype=np.float32)
    made = faiss.IndexScalarQuantizer(4, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    made.train(vectors)
    made.add(vectors)
    faiss.write_index(made, str(tmp_path / INDEX))
    (tmp_path / DOCUMENTS).write_text("".join(f'{{"id": {number}, "content": "text {number}"}}\n' for number in range(4)))

    ((best, second, *_),) = Index.read(tmp_path).nearest(np.array([[0, 0.6, 0.8, 0]], dtype=np.float32), 1000)

    assert [2, 1] == [document["id"] for _, document in (best, second)]
    assert [pytest.approx(0.8, abs=1e-3), pytest.approx(0.6, abs=1e-3)] == [best[0], second[0]]


def test_files_that_do_not_match(index_dir: Path, tmp_path: Path) -> None:
    """A missing document, vectors of another length, and a file that is not an index are errors of one sentence."""
    folder = tmp_path / "index"
    shutil.copytree(index_dir, folder)
    with pytest.raises(ConfigError, match="the index has vectors of 512 numbers, and the embeddings have 3"):
        Index.read(folder).nearest(np.ones((1, 3), dtype=np.float32), 1)
    lines = (folder / DOCUMENTS).read_text().splitlines(keepends=True)
    (folder / DOCUMENTS).write_text("".join(lines[1:]))
    with pytest.raises(ConfigError, match=r"eval\.index has 5 vectors and eval\.jsonl 4 documents"):
        Index.read(folder)
    (folder / INDEX).write_bytes(b"no index")
    with pytest.raises(ConfigError, match="FAISS cannot read the index"):
        Index.read(folder)
    (folder / INDEX).unlink()
    with pytest.raises(ConfigError, match=r"does not exist: create it with `agentbench retriever build CORPUS\.jsonl --output "):
        Index.read(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "corpus.jsonl:1: not valid JSON"),
        ('{"content": "a"}', "corpus.jsonl:1: a document must be an object with an `id`"),
        ('{"id": "a"}', "corpus.jsonl:1: a document must have a text under the key 'content' or 'contents'"),
        ('{"id": "a", "content": "x"}\n{"id": "a", "content": "y"}', "corpus.jsonl:2: the id 'a' occurs twice; ids must be unique"),
        ("", "corpus.jsonl: the file contains no documents"),
    ],
)
def test_an_invalid_corpus(tmp_path: Path, line: str, message: str) -> None:
    """The error about an invalid corpus names the file, the line and the problem."""
    (tmp_path / "corpus.jsonl").write_text(line)

    with pytest.raises(ConfigError) as caught:
        read_corpus(tmp_path / "corpus.jsonl")

    assert message in str(caught.value)


def test_an_invalid_list_of_documents(tmp_path: Path) -> None:
    """The lists of documents must be an object of lists, one for each question."""
    file = tmp_path / "allowed.json"
    file.write_text(json.dumps({"q": [1, "b"]}))
    assert {"q": frozenset({"1", "b"})} == read_allowed(file)
    file.write_text(json.dumps([*TEXTS]))
    with pytest.raises(ConfigError, match="must contain an object, question id -> list of document ids"):
        read_allowed(file)


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        ("faiss", ["--url", "http://127.0.0.1:9/v1"], "faiss is not installed: pip install 'pytest-agentbench[retriever]'"),
        ("sentence_transformers", [], "sentence-transformers is not installed: pip install 'pytest-agentbench[sentence-transformers]'"),
    ],
)
def test_missing_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str, words: list[str], message: str
) -> None:
    """If a package is missing, the error has the command that installs it. There is no fallback."""
    monkeypatch.setitem(sys.modules, module, None)

    assert 4 == main(["retriever", "build", "corpus.jsonl", "--model", "m", *words])

    assert f"agentbench: {message}\n" == capsys.readouterr().err
