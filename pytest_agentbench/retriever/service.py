"""The HTTP service of the retriever: GET /health, and POST /retrieve with the format of ToolOrchestra's retriever.

Can use Tavily's web search, and writes a log of the requests.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import aiohttp
import orjson
from aiohttp import web
from pydantic import Field, StringConstraints

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.config import Spec, validate
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.wire import LOG
from pytest_agentbench.records import Json
from pytest_agentbench.retriever.config import RetrieverConfig, TavilySpec
from pytest_agentbench.retriever.index import Embedder, Index, text_of


def log_location() -> Json:
    """Returns {log: path of this process's log}, or an empty dictionary if the process was started by hand."""
    path = os.environ.get(LOG)
    return {"log": path} if path else {}


@contextmanager
def log_request() -> Iterator[Json]:
    """Writes a line to the log when the block ends: its start time, its duration in seconds, and the content of the yielded dictionary."""
    facts: Json = {}
    time_of_day, began = datetime.now(UTC), time.monotonic()
    try:
        yield facts
    except BaseException as error:  # Includes the cancellation of a request whose client has disconnected.
        facts["error"] = repr(error)
        raise
    finally:
        seconds = round(time.monotonic() - began, 4)
        line = {"time": time_of_day.isoformat(timespec="milliseconds"), **facts, "seconds": seconds}
        sys.stderr.write(f"{orjson.dumps(line).decode()}\n")
        sys.stderr.flush()


LONGEST = 390  # characters of the longest query that Tavily accepts


class Tavily:
    """A client of Tavily's web search. Its key comes from the environment."""

    def __init__(self, spec: TavilySpec) -> None:
        self._spec, self._key = spec, os.environ.get(spec.api_key, "")

    def is_needed(self, documents: int) -> bool:
        """Returns whether to search the web, if this many documents are near enough."""
        return bool(self._key) and documents < self._spec.below

    async def search(self, query: str) -> list[Json]:
        """Returns hits in the format of the retriever, the best first, with the scores -1, -2, ... Raises BackendError if it fails."""
        url = f"{self._spec.url.rstrip('/')}/search"
        body = {"query": query[:LONGEST], "search_depth": "advanced", "max_results": self._spec.results, "include_raw_content": True}
        headers, timeout = {"Authorization": f"Bearer {self._key}"}, aiohttp.ClientTimeout(total=self._spec.timeout)
        try:
            async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session, session.post(url, json=body) as response:
                if response.status != 200:
                    raise BackendError(f"{url}: the web search answered HTTP {response.status}: {beginning(await response.text(), 300)}")
                results = (await response.json(content_type=None))["results"]
                texts = [str(each.get("raw_content") or each.get("content") or "") for each in results]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BackendError(f"{url}: no answer: {error!r}; is tavily.url right?") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BackendError(f"{url}: the answer contains no results: {error!r}; is tavily.url right?") from error
        return [{"document": {"content": text}, "score": -rank, "source": "tavily"} for rank, text in enumerate(filter(None, texts), 1)]


LARGEST_BODY = 1 << 24  # bytes
Query = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class RetrievalRequest(Spec):
    """The body of /retrieve."""

    queries: list[Query] = Field(min_length=1, max_length=256)
    topk: int = Field(default=5, ge=1)  # documents for each query
    return_scores: bool = False  # whether to return {document, score, source} instead of documents
    eid: str | int | None = None  # id of the question, if each question has its own list of documents


class Retriever:
    """The retriever: finds documents for queries with an index, an embedder, and the lists of documents that questions may get."""

    def __init__(self, config: RetrieverConfig, index: Index, embedder: Embedder, allowed: Mapping[str, frozenset[str]] | None) -> None:
        self._config, self._index, self._embedder, self._allowed = config, index, embedder, allowed
        self._tavily = Tavily(config.tavily) if config.tavily else None

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_get("/health", self._health)
        application.router.add_post("/retrieve", self._retrieve)
        return application

    async def check(self) -> None:
        """Raises ConfigError if the embeddings do not fit the index, and BackendError if they cannot be computed."""
        self._index.nearest(await self._embedder.vectors(["probe"]), 1)

    async def hits(self, request: RetrievalRequest) -> list[list[Json]]:
        """Returns the hits of each query as {document, score, source}, the nearest first."""
        vectors = await self._embedder.vectors([f"{self._config.embeddings.query_prefix}{query}" for query in request.queries])
        nearest = await asyncio.to_thread(self._index.nearest, vectors, self._config.candidates)
        return [await self._hits_of_query(query, documents, request) for query, documents in zip(request.queries, nearest, strict=True)]

    async def _hits_of_query(self, query: str, nearest: list[tuple[float, Json]], request: RetrievalRequest) -> list[Json]:
        near = [
            {"document": document, "score": score, "source": "local"} for score, document in nearest if self._fits(score, document, request)
        ]
        if self._tavily and self._tavily.is_needed(len(near)):
            near += await self._tavily.search(query)
        return near[: request.topk]

    def _fits(self, score: float, document: Json, request: RetrievalRequest) -> bool:
        if self._allowed is not None and str(document["id"]) not in self._allowed.get(str(request.eid), ()):
            return False
        return score > self._config.least_score and len(text_of(document)) > self._config.least_characters

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok", "documents": len(self._index.documents), **log_location()})

    async def _retrieve(self, http: web.Request) -> web.Response:
        with log_request() as facts:
            try:
                request = validate(RetrievalRequest, orjson.loads(await http.read()), "request")
                facts |= {"scenario": request.eid, "queries": len(request.queries)}
                hits = await self.hits(request)
            except (ConfigError, orjson.JSONDecodeError) as error:
                return _refusal(error, 400, facts)
            except BackendError as error:
                return _refusal(error, 502, facts)
            facts |= {"documents": sum(map(len, hits)), **Counter(hit["source"] for each in hits for hit in each)}
        return _json(hits if request.return_scores else [[hit["document"] for hit in each] for each in hits])


def _refusal(error: Exception, status: int, facts: Json) -> web.Response:
    """Returns an HTTP response with an error message. Adds status and message to `facts`, which are written to the request log."""
    facts |= {"status": status, "error": str(error)}
    return _json({"detail": str(error)}, status)


def _json(data: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type="application/json")
