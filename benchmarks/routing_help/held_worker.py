"""A worker of `backends/dynamo_embedded_worker.py` that registers itself when a line arrives on stdin.

It runs in Dynamo's environment: `python held_worker.py ENGINE_URLS NUMBER MODEL FOLDER STATE`. When it is ready to register itself, it
writes the file STATE/held-NUMBER, and when it has registered itself STATE/registered-NUMBER.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import dynamo_embedded_worker as embedded
import uvloop
from dynamo.runtime import DistributedRuntime, dynamo_worker
from tiny_tokenizer import make


async def register(*arguments: Any, **options: Any) -> None:
    """Registers the worker, and says so when its endpoint is about to serve."""
    await original(*arguments, **options)
    asyncio.get_running_loop().call_later(0.3, (state / f"registered-{number}").touch)


if __name__ == "__main__":
    state, number, original = Path(sys.argv.pop()), sys.argv[2], vars(embedded)["register_model"]
    vars(embedded)["register_model"] = register
    make(Path(sys.argv[4]))
    (state / f"held-{number}").touch()
    sys.stdin.readline()

    async def serve(runtime: DistributedRuntime) -> None:
        await embedded.serve(runtime)

    uvloop.run(dynamo_worker()(serve)())
