"""An index of documents by their vectors: eval.index is FAISS's, and line n of eval.jsonl is the document of its vector n."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.records import Json
from pytest_agentbench.retriever.corpus import read_corpus, text_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_agentbench.retriever.embeddings import Embedder

INDEX, DOCUMENTS = "eval.index", "eval.jsonl"


def faiss() -> Any:
    """The module; raises ConfigError with the command that installs it."""
    try:
        import faiss as module
    except ImportError as error:
        raise ConfigError("faiss is not installed: pip install 'pytest-agentbench[retriever]'") from error
    return module


class Index:
    """The documents that are nearest to a vector."""

    def __init__(self, index: Any, documents: Sequence[Json]) -> None:
        self._index, self.documents, self._free = index, documents, threading.Lock()

    @classmethod
    def read(cls, folder: Path, *, gpu: bool = False) -> Index:
        """One that was built, here or elsewhere; raises ConfigError for files that are not there, or do not belong together."""
        library, documents = faiss(), read_corpus(folder / DOCUMENTS)
        if not (folder / INDEX).is_file():
            raise ConfigError(f"{folder / INDEX} is not there: `agentbench retriever build CORPUS.jsonl --output {folder}` makes it")
        try:
            index = library.read_index(str(folder / INDEX))
        except RuntimeError as error:
            raise ConfigError(f"{folder / INDEX}: FAISS cannot read it: {str(error).splitlines()[-1][:200]}") from error
        if index.ntotal != len(documents):
            raise ConfigError(
                f"{folder}: {INDEX} has {index.ntotal} vectors and {DOCUMENTS} {len(documents)} documents: they should be of one corpus"
            )
        return cls(_on_gpus(library, index) if gpu else index, documents)

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        return int(self._index.d)

    def nearest(self, vectors: NDArray[np.float32], most: int) -> list[list[tuple[float, Json]]]:
        """For each vector (score, document), the nearest first; raises ConfigError where its length is not that of the index."""
        if vectors.shape[1] != self.dimensions:
            raise ConfigError(
                f"the index has vectors of {self.dimensions} numbers, and the embeddings {vectors.shape[1]}: name the model that made it"
            )
        with self._free:  # FAISS serves one thread at a time on a GPU, and takes all cores for one on the CPU
            scores, places = self._index.search(vectors, min(most, len(self.documents)))
        return [
            [(float(score), self.documents[place]) for score, place in zip(*row, strict=True) if place >= 0]
            for row in zip(scores, places, strict=True)
        ]


def _on_gpus(library: Any, index: Any) -> Any:
    """Moves an index to all visible GPUs, a part to each, in half precision; raises ConfigError if FAISS sees no GPU."""
    if not library.get_num_gpus():
        raise ConfigError(
            "gpu: FAISS sees no GPU; its build for GPUs is in the environment `retriever` (agentbench env create retriever), "
            "and CUDA_VISIBLE_DEVICES says which GPUs it may see"
        )
    options = library.GpuMultipleClonerOptions()
    options.useFloat16 = options.shard = True
    return library.index_cpu_to_all_gpus(index, co=options)


async def build(corpus: Path, folder: Path, embedder: Embedder) -> int:
    """Writes the index of a corpus, by inner product, into a folder; returns how many documents it has."""
    documents = read_corpus(corpus)
    _write(documents, await embedder.vectors([text_of(document) for document in documents]), folder)
    return len(documents)


def _write(documents: Sequence[Json], vectors: NDArray[np.float32], folder: Path) -> None:
    """Both files, the index last: a folder with an index has its documents, too."""
    library = faiss()
    index = library.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / DOCUMENTS, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in documents))
    incomplete = folder / f".incomplete-{INDEX}"
    library.write_index(index, str(incomplete))
    incomplete.replace(folder / INDEX)
