"""Vectors of texts: from an OpenAI-compatible server, or from a model of sentence-transformers in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.retriever.config import EmbeddingsSpec, filled_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH = 256  # texts in a request


class Embedder(Protocol):
    """Makes vectors."""

    async def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row of length 1 for each text; raises BackendError where they cannot be made."""


def embedder(spec: EmbeddingsSpec) -> Embedder:
    """The one that the settings describe; raises ConfigError where its key or its package is not there."""
    return Server(spec) if spec.url else InProcess(filled_in(spec.model, "embeddings.model"))


class Server:
    """An OpenAI-compatible /embeddings."""

    def __init__(self, spec: EmbeddingsSpec) -> None:
        self._spec, self._url = spec, f"{(spec.url or '').rstrip('/')}/embeddings"
        self._headers: dict[str, str] = {}
        if spec.api_key:
            if not (key := os.environ.get(spec.api_key)):
                raise ConfigError(f"the retriever's embeddings need a key: set {spec.api_key}")
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
                    raise BackendError(f"{self._url}: HTTP {response.status}: {beginning(await response.text(), 300)}")
                data = (await response.json(content_type=None))["data"]
                rows = [each["embedding"] for each in sorted(data, key=lambda each: each["index"])]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BackendError(f"{self._url}: no embeddings: {error!r}; is the server up?") from error
        except (KeyError, TypeError, ValueError) as error:
            raise BackendError(f"{self._url}: what it answers holds no embeddings: {error!r}; does the URL end in /v1?") from error
        if len(rows) != len(texts):
            raise BackendError(f"{self._url}: {len(rows)} embeddings for {len(texts)} texts; there should be one each")
        return rows


class InProcess:
    """A model of sentence-transformers."""

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ConfigError("sentence-transformers is not installed: pip install 'pytest-agentbench[sentence-transformers]'") from error
        self._model, self._free = SentenceTransformer(model), asyncio.Lock()

    async def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        async with self._free:  # a tokenizer serves one thread at a time
            return _unit(await asyncio.to_thread(self._model.encode, [*texts]))


def _unit(rows: Any) -> NDArray[np.float32]:
    """The rows at length 1, so that an inner product is a cosine; a row of zeros stays one."""
    import numpy as np

    try:
        matrix = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise BackendError(f"embeddings should be lists of numbers of one length: {error}") from error
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise BackendError("embeddings should be lists of finite numbers of one length")
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.ascontiguousarray(matrix / np.where(lengths > 0, lengths, 1), dtype=np.float32)
