"""The engines before which the router stands: which of them are alive, and their load by their own metrics."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import aiohttp

from pytest_agentbench.router.features import WorkerLoad
from pytest_agentbench.router.seen_prompts import SeenPrompts

LIMIT = 1.0  # time limit of a request for metrics, seconds
FRESH_INTERVALS = 6  # intervals after which metrics are too old


def _sample(*names: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:{'|'.join(map(re.escape, names))})(?:\{{.*\}})? (\S+)", re.MULTILINE)


GPU = _sample("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
QUEUE = _sample("vllm:num_requests_waiting", "sglang:num_queue_reqs")
CACHE_BLOCKS, BLOCK_SIZE = re.compile(r'num_gpu_blocks="(\d+)"'), re.compile(r'[{,]block_size="(\d+)"')


class WatchedEngine:
    """An engine: its address, whether it is alive, its last metrics, and the prompts that it got since it began to live.

    An engine that leaves gets no more calls, and is forgotten when those in flight have ended.
    """

    def __init__(self, url: str, *, is_alive: bool = True) -> None:
        self.url = url
        self.id = urlsplit(url).netloc
        self.is_alive = is_alive
        self.is_leaving = False
        self.calls = 0  # calls in flight
        self.gpu: float | None = None  # share of the KV cache in use, 0 to 1
        self.queue: float | None = None  # waiting calls
        self.read_at = 0.0  # time of the last metrics, seconds, time.monotonic()
        self.prompts = SeenPrompts()

    def take_metrics(self, page: str) -> None:
        """Takes a page of metrics, with the names of vLLM or SGLang. Values that are missing or no numbers become None."""
        self.gpu, self.queue, self.read_at = _value(GPU, page), _value(QUEUE, page), time.monotonic()
        blocks, size = CACHE_BLOCKS.search(page), BLOCK_SIZE.search(page)
        if blocks and size:
            self.prompts.set_cache(int(blocks[1]), int(size[1]))

    def load(self, blocks: Sequence[int], oldest: float) -> WorkerLoad:
        """Returns the load for a call whose prompt has these blocks. Metrics older than `oldest` seconds are missing."""
        overlap = self.prompts.overlap(blocks)
        if time.monotonic() - self.read_at > oldest:
            return WorkerLoad(overlap=overlap)
        return WorkerLoad(self.gpu, self.queue, overlap)

    def mark_dead(self) -> None:
        """Notes that the engine cannot be reached. An engine that comes back has an empty cache."""
        self.is_alive, self.gpu, self.queue = False, None, None
        self.prompts.clear()


class EngineWatch:
    """The engines of a router, which may join and leave at any time. Requests the metrics of each engine at an interval.

    An engine is dead if it refuses connections, and alive again when it answers. One that is only slow stays alive without metrics.
    The first engines count as alive from the start. One that joins later is alive when it has answered.
    """

    def __init__(self, urls: Sequence[str], interval: float) -> None:
        self._interval = interval
        self._engines = {engine.id: engine for engine in map(WatchedEngine, urls)}
        self._http: aiohttp.ClientSession | None = None
        self._tasks: dict[WatchedEngine, asyncio.Task[None]] = {}

    @property
    def alive(self) -> Mapping[str, WatchedEngine]:
        """The engines that can get calls, by id."""
        return {id: engine for id, engine in self._engines.items() if engine.is_alive and not engine.is_leaving}

    @property
    def all(self) -> Mapping[str, WatchedEngine]:
        """All engines by id."""
        return self._engines

    def loads(self, blocks: Sequence[int]) -> dict[str, WorkerLoad]:
        """Returns the load of each living engine, for a call whose prompt has these blocks."""
        return {id: engine.load(blocks, self._interval * FRESH_INTERVALS) for id, engine in self.alive.items()}

    def join(self, url: str) -> WatchedEngine | None:
        """Adds an engine. Returns None if it is there. One that is leaving begins anew."""
        engine = WatchedEngine(url, is_alive=False)
        if (known := self._engines.get(engine.id)) and not known.is_leaving:
            return None
        self._engines[engine.id] = engine
        self._begin(engine)
        return engine

    async def leave(self, id: str) -> WatchedEngine | None:
        """Gives an engine no more calls. Returns None if it is not there."""
        if (engine := self._engines.get(id)) is None:
            return None
        engine.is_leaving = True
        self._forget_if_idle(engine)
        await self._end(engine)
        return engine

    @contextmanager
    def calling(self, engine: WatchedEngine) -> Iterator[None]:
        """Counts a call as in flight while the block runs."""
        engine.calls += 1
        try:
            yield
        finally:
            engine.calls -= 1
            self._forget_if_idle(engine)

    def is_current(self, engine: WatchedEngine) -> bool:
        """Returns whether an engine has neither left nor begun anew."""
        return self._engines.get(engine.id) is engine and not engine.is_leaving

    def start(self, http: aiohttp.ClientSession) -> None:
        """Begins to watch the engines."""
        self._http = http
        for engine in self._engines.values():
            self._begin(engine)

    async def stop(self) -> None:
        """Ends the watching."""
        for engine in [*self._tasks]:
            await self._end(engine)

    def _begin(self, engine: WatchedEngine) -> None:
        if self._http is not None:
            self._tasks[engine] = asyncio.create_task(self._watch(engine, self._http))

    async def _end(self, engine: WatchedEngine) -> None:
        if (task := self._tasks.pop(engine, None)) is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _forget_if_idle(self, engine: WatchedEngine) -> None:
        if engine.is_leaving and not engine.calls and self._engines.get(engine.id) is engine:
            del self._engines[engine.id]

    async def _watch(self, engine: WatchedEngine, http: aiohttp.ClientSession) -> None:
        while True:
            await self._look(engine, http)
            await asyncio.sleep(self._interval)

    async def _look(self, engine: WatchedEngine, http: aiohttp.ClientSession) -> None:
        try:
            async with http.get(f"{engine.url}/metrics", timeout=aiohttp.ClientTimeout(total=LIMIT)) as answer:
                page = await answer.text(errors="replace")
            engine.take_metrics(page if answer.status == 200 else "")
            engine.is_alive = True
        except aiohttp.ClientConnectorError:
            engine.mark_dead()
        except (aiohttp.ClientError, TimeoutError, OSError):
            engine.gpu = engine.queue = None


def _value(pattern: re.Pattern[str], page: str) -> float | None:
    try:
        return float(match[1]) if (match := pattern.search(page)) else None
    except ValueError:
        return None
