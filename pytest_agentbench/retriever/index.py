"""The index of a corpus: its documents and their vectors. eval.index is a FAISS index; line n of eval.jsonl is the document of vector n."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import json_in, read_json_file, read_text
from pytest_agentbench.records import Json
from pytest_agentbench.retriever.config import EmbeddingsSpec, expand_variables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


TEXTS = ("content", "contents")  # keys of a document's text; the first one that exists is used


def read_corpus(file: Path) -> list[Json]:
    """Reads the documents of a file. Raises ConfigError with file and line if a document is invalid, or if an id occurs twice."""
    documents: list[Json] = []
    seen: set[str] = set()
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if line.strip():
            document = _document(json_in(file, line, number), f"{file}:{number}")
            if (id := str(document["id"])) in seen:
                raise ConfigError(f"{file}:{number}: the id {id!r} occurs twice; ids must be unique")
            seen.add(id)
            documents.append(document)
    if not documents:
        raise ConfigError(f"{file}: the file contains no documents; it must have one JSON object per line")
    return documents


def text_of(document: Json) -> str:
    """Returns the text of a document."""
    return next((str(document[key]) for key in TEXTS if key in document), "")


def read_allowed(file: Path) -> dict[str, frozenset[str]]:
    """Reads which documents each question may get: question id -> document ids. Raises ConfigError if the file is invalid."""
    data = read_json_file(file)
    if not isinstance(data, dict) or not all(isinstance(ids, list) for ids in data.values()):
        raise ConfigError(f"{file}: must contain an object, question id -> list of document ids")
    return {question: frozenset(map(str, ids)) for question, ids in data.items()}


def _document(document: Any, where: str) -> Json:
    """Checks a document, the JSON value of one line, and returns it. Raises ConfigError if it is invalid."""
    if not isinstance(document, dict) or not isinstance(document.get("id"), str | int):
        raise ConfigError(f"{where}: a document must be an object with an `id`")
    if not any(isinstance(document.get(key), str) for key in TEXTS):
        raise ConfigError(f"{where}: a document must have a text under the key {' or '.join(map(repr, TEXTS))}")
    return document


BATCH = 256  # texts in a request


class Embedder(Protocol):
    """Computes the vectors of texts: `Server` by HTTP, or `InProcess` with a model in this process."""

    async def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns a matrix with the vector of each text as a row, scaled to norm 1. Raises BackendError if that fails."""


def embedder(spec: EmbeddingsSpec) -> Embedder:
    """Creates the embedder that the settings describe. Raises ConfigError if its key or its package is missing."""
    return Server(spec) if spec.url else InProcess(expand_variables(spec.model, "embeddings.model"))


class Server:
    """An embedder that uses the /embeddings of an OpenAI-compatible server."""

    def __init__(self, spec: EmbeddingsSpec) -> None:
        self._spec, self._url = spec, f"{(spec.url or '').rstrip('/')}/embeddings"
        self._headers: dict[str, str] = {}
        if spec.api_key:
            if not (key := os.environ.get(spec.api_key)):
                raise ConfigError(f"the retriever's embeddings need an API key: export {spec.api_key}=...")
            self._headers = {"Authorization": f"Bearer {key}"}

    async def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import aiohttp

        rows: list[list[float]] = []
        async with aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout(total=self._spec.timeout)) as session:
            for start in range(0, len(texts), BATCH):
                rows += await self._rows(session, texts[start : start + BATCH])
        return _unit(rows)

    async def _rows(self, session: Any, texts: Sequence[str]) -> list[list[float]]:
        import aiohttp

        body = {"model": self._spec.model, "input": [*texts], "encoding_format": "float"}
        try:
            async with session.post(self._url, json=body) as response:
                if response.status != 200:
                    raise BackendError(
                        f"{self._url}: the server of embeddings answered HTTP {response.status}: {beginning(await response.text(), 300)}"
                    )
                data = (await response.json(content_type=None))["data"]
                rows = [each["embedding"] for each in sorted(data, key=lambda each: each["index"])]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BackendError(f"{self._url}: no embeddings: {error!r}; is the server up?") from error
        except (KeyError, TypeError, ValueError) as error:
            raise BackendError(f"{self._url}: the answer contains no embeddings: {error!r}; does embeddings.url end in /v1?") from error
        if len(rows) != len(texts):
            raise BackendError(
                f"{self._url}: the server returned {len(rows)} embeddings for {len(texts)} texts; it must return one for each"
            )
        return rows


class InProcess:
    """An embedder that runs a model of sentence-transformers in this process."""

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ConfigError("sentence-transformers is not installed: pip install 'pytest-agentbench[sentence-transformers]'") from error
        self._model, self._free = SentenceTransformer(model), asyncio.Lock()

    async def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        async with self._free:  # A tokenizer can only be used by one thread at a time.
            return _unit(await asyncio.to_thread(self._model.encode, [*texts]))


def _unit(rows: Any) -> NDArray[np.float32]:
    """Returns a matrix of the vectors in `rows`, scaled to norm 1, so that inner products are cosines. Zero vectors stay unchanged.

    Raises BackendError if `rows` are not finite numbers, or not all of the same length.
    """
    import numpy as np

    try:
        matrix = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise BackendError(f"the embeddings must be lists of numbers, all of the same length: {error}") from error
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise BackendError("the embeddings must be lists of finite numbers, all of the same length")
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.ascontiguousarray(matrix / np.where(lengths > 0, lengths, 1), dtype=np.float32)


INDEX, DOCUMENTS = "eval.index", "eval.jsonl"


def faiss() -> Any:
    """Imports faiss. If it is missing, raises ConfigError with the command that installs it."""
    try:
        import faiss as module
    except ImportError as error:
        raise ConfigError("faiss is not installed: pip install 'pytest-agentbench[retriever]'") from error
    return module


class Index:
    """A loaded index, which finds the documents nearest to a vector."""

    def __init__(self, index: Any, documents: Sequence[Json]) -> None:
        self._index, self.documents, self._free = index, documents, threading.Lock()

    @classmethod
    def read(cls, folder: Path, *, gpu: bool = False) -> Index:
        """Loads an index. Raises ConfigError if its files are missing or invalid, or do not belong together."""
        library, documents = faiss(), read_corpus(folder / DOCUMENTS)
        if not (folder / INDEX).is_file():
            raise ConfigError(
                f"{folder / INDEX} does not exist: create it with `agentbench retriever build CORPUS.jsonl --output {folder}`"
            )
        try:
            index = library.read_index(str(folder / INDEX))
        except RuntimeError as error:
            raise ConfigError(
                f"{folder / INDEX}: FAISS cannot read the index; build it again: {str(error).splitlines()[-1][:200]}"
            ) from error
        if index.ntotal != len(documents):
            raise ConfigError(
                f"{folder}: {INDEX} has {index.ntotal} vectors and {DOCUMENTS} {len(documents)} documents: build both together"
            )
        return cls(_on_gpus(library, index) if gpu else index, documents)

    @property
    def dimensions(self) -> int:
        """The number of dimensions of the vectors."""
        return int(self._index.d)

    def nearest(self, vectors: NDArray[np.float32], most: int) -> list[list[tuple[float, Json]]]:
        """Returns the nearest (score, document) pairs of each vector, the nearest first.

        Raises ConfigError if the vectors have other dimensions than the index.
        """
        if vectors.shape[1] != self.dimensions:
            raise ConfigError(
                f"the index has vectors of {self.dimensions} numbers, and the embeddings have {vectors.shape[1]}: "
                "use the model with which the index was built"
            )
        with self._free:  # On a GPU, FAISS is not thread-safe. On the CPU, one search already uses all cores.
            scores, places = self._index.search(vectors, min(most, len(self.documents)))
        return [
            [(float(score), self.documents[place]) for score, place in zip(*row, strict=True) if place >= 0]
            for row in zip(scores, places, strict=True)
        ]


def _on_gpus(library: Any, index: Any) -> Any:
    """Distributes an index over all visible GPUs, in half precision. Raises ConfigError if FAISS sees no GPU."""
    if not library.get_num_gpus():
        raise ConfigError(
            "gpu: FAISS sees no GPU; use the environment `retriever`, which has FAISS for GPUs (agentbench env create retriever), "
            "and check CUDA_VISIBLE_DEVICES"
        )
    options = library.GpuMultipleClonerOptions()
    options.useFloat16 = options.shard = True
    return library.index_cpu_to_all_gpus(index, co=options)


async def build(corpus: Path, folder: Path, embedder: Embedder) -> int:
    """Builds the index of the documents in a file, and writes it to a folder. Returns the number of documents."""
    documents = read_corpus(corpus)
    _write(documents, await embedder.vectors([text_of(document) for document in documents]), folder)
    return len(documents)


def _write(documents: Sequence[Json], vectors: NDArray[np.float32], folder: Path) -> None:
    """Writes documents and vectors as the two files of an index. The vectors are last, so a folder that has them also has the documents."""
    library = faiss()
    index = library.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / DOCUMENTS, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in documents))
    incomplete = folder / f".incomplete-{INDEX}"
    library.write_index(index, str(incomplete))
    incomplete.replace(folder / INDEX)
