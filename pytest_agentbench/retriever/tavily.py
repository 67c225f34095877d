"""Tavily's web search, asked where the documents of an index have too little to say."""

from __future__ import annotations

import os

import aiohttp

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Json
from pytest_agentbench.retriever.config import TavilySpec

LONGEST = 390  # characters of a query that it takes


class Tavily:
    """The service, with the key that the environment has."""

    def __init__(self, spec: TavilySpec) -> None:
        self._spec, self._key = spec, os.environ.get(spec.api_key, "")

    def wanted(self, documents: int) -> bool:
        """Whether it is to be asked where so many documents were near enough."""
        return bool(self._key) and documents < self._spec.below

    async def search(self, query: str) -> list[Json]:
        """Hits in the retriever's form, the best first, with scores of -1, -2, ...; raises BackendError where there is no answer."""
        url = f"{self._spec.url.rstrip('/')}/search"
        body = {"query": query[:LONGEST], "search_depth": "advanced", "max_results": self._spec.results, "include_raw_content": True}
        headers, timeout = {"Authorization": f"Bearer {self._key}"}, aiohttp.ClientTimeout(total=self._spec.timeout)
        try:
            async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session, session.post(url, json=body) as response:
                if response.status != 200:
                    raise BackendError(f"{url}: HTTP {response.status}: {beginning(await response.text(), 300)}")
                results = (await response.json(content_type=None))["results"]
                texts = [str(each.get("raw_content") or each.get("content") or "") for each in results]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BackendError(f"{url}: no answer: {error!r}; is tavily.url right?") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BackendError(f"{url}: what it answers holds no results: {error!r}; is tavily.url right?") from error
        return [{"document": {"content": text}, "score": -rank, "source": "tavily"} for rank, text in enumerate(filter(None, texts), 1)]
