"""A Dynamo worker that writes each request to a file and answers with one token: `python request_log_worker.py MODEL FOLDER FILE`.

It runs in Dynamo's environment. The file gets a JSON line for each request, as a router or worker behind Dynamo's frontend gets it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker
from tiny_tokenizer import make

Json = dict[str, Any]


def append(file: Path, line: str) -> None:
    with file.open("a") as log:
        log.write(line)


async def serve(runtime: DistributedRuntime) -> None:
    model, folder, file = sys.argv[1:]
    make(Path(folder))

    async def generate(request: Json, context: Any) -> AsyncIterator[Json]:
        del context
        append(Path(file), json.dumps(request, default=str) + "\n")
        yield {"token_ids": request["token_ids"][:1], "finish_reason": "stop"}

    endpoint = runtime.endpoint("dynamo.backend.generate")
    kind, role = ModelType.Chat, WorkerType.Aggregated
    await register_model(ModelInput.Tokens, kind, endpoint, folder, model, worker_type=role, kv_cache_block_size=16)
    await endpoint.serve_endpoint(generate, graceful_shutdown=True)


if __name__ == "__main__":
    uvloop.run(dynamo_worker()(serve)())
