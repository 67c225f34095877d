"""A component between Dynamo's frontend and its workers, which asks the Thompson-sampling router for the worker of each call.

It runs in Dynamo's environment: `python dynamo_processor.py ROUTER_URL MODEL FOLDER WORKERS BLOCKS [--no-kv-events]`. ROUTER_URL is a
process `python -m pytest_agentbench.router.find_worker`. MODEL is the name under which clients know the model whose files are in FOLDER;
the workers have another name. WORKERS is the workers' endpoint, for example `workers.backend.generate`. BLOCKS is the number of KV
blocks of a worker. With --no-kv-events, the workers report no changes of their caches, and the contents are expected from the calls.

A call that its worker does not accept, for example because the worker is dead, goes to another one. A call that a worker has accepted is
never repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from dynamo.llm import KvRouter, KvRouterConfig, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.llm.exceptions import InvalidArgument
from dynamo.runtime import DistributedRuntime, dynamo_worker
from tiny_tokenizer import make

Json = dict[str, Any]

BLOCK = 16  # tokens per KV block
LOST = 10.0  # seconds for which a worker that could not be reached gets no calls, while there are others


class Processor:
    """Sends each call to the worker that the router names, and tells the router how the call ended."""

    def __init__(self, kv: KvRouter, workers: Any, router: str, blocks: int, http: aiohttp.ClientSession) -> None:
        self._kv, self._workers, self._router, self._blocks, self._http = kv, workers, router, blocks, http
        self._lost: dict[int, float] = {}  # worker that could not be reached -> when, seconds, time.monotonic()
        self._tasks: set[asyncio.Task[Json]] = set()

    async def generate(self, request: Json, context: Any) -> AsyncIterator[Json]:
        """Yields the answer to one request as tokens. Dynamo calls it for each request, and closes it if the client disconnects."""
        decision, tried = None, set[int]()
        while True:
            question = {**await self._described(request, tried), "instead_of": decision}
            found = await self._ask("find_worker", question)
            decision, worker = found["decision"], int(found["worker"])
            pinned = {**request, "routing": {**(request.get("routing") or {}), "backend_instance_id": worker}}
            try:
                chunks = await self._kv.generate_from_request(pinned)
            except Exception as error:  # Dynamo has no narrower type for errors before the worker has accepted the call.
                sys.stderr.write(f"worker {worker} does not accept a call: {error}\n")
                tried.add(worker)
                self._lost[worker] = time.monotonic()
                continue
            async for chunk in self._answer(chunks, context, decision, worker):
                yield chunk
            return

    async def _answer(self, chunks: AsyncIterator[Json], context: Any, decision: int, worker: int) -> AsyncIterator[Json]:
        """Yields the answer of a worker, which it names in the last chunk, and tells the router how the call ended."""
        ending, tokens = "disconnected", 0
        try:
            async for chunk in chunks:
                tokens += len(chunk.get("token_ids") or ())
                if chunk.get("finish_reason"):
                    chunk["engine_data"] = {**(chunk.get("engine_data") or {}), "worker_id": worker}
                    ending = "answered"
                yield chunk
            ending = "disconnected" if context.is_stopped() else "answered"
        except Exception as error:
            ending = "unjudged" if _is_refusal(error) else "failed"
            if ending == "unjudged":
                raise
            # The client gets status 500. Dynamo's own error, a ValueError, would be 400. After WorkerUnavailable, the frontend would make
            # no more calls here.
            raise RuntimeError(str(error)) from error
        finally:
            self._tell(decision, ending, tokens)

    async def _described(self, request: Json, tried: Collection[int]) -> Json:
        """Returns what the router needs to know of a request: its hints, its tokens, and the workers with their loads and overlaps."""
        ids, session = request["token_ids"], (request.get("agent_context") or {}).get("session_id")
        overlaps, loads = await asyncio.gather(self._kv.get_overlap_scores(ids), self._kv.get_potential_loads(ids))
        now, used, cached = time.monotonic(), dict[int, int](), dict[int, int]()
        for row in loads:
            used[row["worker_id"]] = used.get(row["worker_id"], 0) + row["potential_decode_blocks"]
        for row in overlaps["workers"]:
            cached[row["worker_id"]] = max(cached.get(row["worker_id"], 0), row["device_blocks"])
        alive = {each for each in self._workers.instance_ids() if each not in tried}
        self._lost = {worker: at for worker, at in self._lost.items() if now - at < LOST}
        whole = max(1, overlaps["num_blocks"])
        workers = {
            str(each): {"gpu": min(1.0, used.get(each, 0) / self._blocks), "overlap": cached.get(each, 0) / whole}
            for each in alive - self._lost.keys() or alive
        }
        osl = (request.get("routing") or {}).get("expected_output_tokens")
        annotations = [*([f"prefix_id:{session}"] if session else []), *(request.get("annotations") or ())]
        return {"workers": workers, "nvext": {"annotations": annotations, "agent_hints": {"osl": osl}}, "tokens": len(ids)}

    def _tell(self, decision: int, ending: str, tokens: int) -> None:
        """Tells the router the end of a call, without waiting for its answer."""
        task = asyncio.create_task(self._ask("feedback", {"decision": decision, "ending": ending, "tokens": tokens}))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, path: str, message: Json) -> Json:
        """Returns the router's answer. Raises InvalidArgument if a hint is wrong, so that the client gets status 400."""
        async with self._http.post(f"{self._router}/{path}", json=message) as answer:
            said: Json = await answer.json()
            if answer.status == 400:
                raise InvalidArgument(said["error"])
            if answer.status != 200:
                raise RuntimeError(f"router: {said['error']}")
            return said


def _is_refusal(error: Exception) -> bool:
    """Returns whether an error means that the call is wrong, and not that a worker has failed."""
    return isinstance(error, InvalidArgument) or str(error).startswith("InvalidRequest")


async def serve(runtime: DistributedRuntime) -> None:
    options = _options()
    make(options.folder)
    target, own = runtime.endpoint(options.workers), runtime.endpoint("dynamo.processor.generate")
    workers = await target.client()
    await workers.wait_for_instances()
    kv = KvRouter(endpoint=target, block_size=BLOCK, kv_router_config=KvRouterConfig(use_kv_events=options.kv_events))
    config = ModelRuntimeConfig()
    config.tool_call_parser = "hermes"
    kind, role = ModelType.Chat | ModelType.Completions, WorkerType.Aggregated
    await register_model(
        ModelInput.Tokens, kind, own, str(options.folder), options.model, worker_type=role, kv_cache_block_size=BLOCK, runtime_config=config
    )
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        processor = Processor(kv, workers, options.router, options.blocks, http)
        await own.serve_endpoint(processor.generate, graceful_shutdown=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A component between Dynamo's frontend and its workers.", allow_abbrev=False)
    parser.add_argument("router")
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers")
    parser.add_argument("blocks", type=int)
    parser.add_argument("--kv-events", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    uvloop.run(dynamo_worker()(serve)())
