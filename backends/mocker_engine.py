"""One engine of Dynamo's mocker that looks like a vLLM server: `python mocker_engine.py FOLDER --name=NAME ... [OPTION...]`.

It runs in Dynamo's environment, and starts the mocker (`dynamo_mocker.py FOLDER OPTION...`) and a frontend of Dynamo for it alone. Its own
HTTP server stands before that frontend, so that routers which expect vLLM or SGLang can use the mocker:

- It removes request fields that the frontend does not know, because vLLM ignores such fields, and routers add some of SGLang's. The
  frontend refuses a request with unknown fields and names them, so the first such request is sent twice.
- Answers are forwarded event by event.
- Answers name the engine in `nvext.worker_id`.
- It answers what routers ask of engines: facts about server and model, tokens of a prompt, load, metrics with vLLM's names.
- After `/reset_prefix_cache`, prompts begin with another token, so that they find nothing in the cache. The mocker cannot empty its cache,
  but it drops first what was not used for longest.

DYN_FILE_KV and HOME must be folders of this engine alone, because processes with the same folders find each other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import uvloop
from aiohttp import web
from tiny_tokenizer import CONFIG, make
from tokenizers import Tokenizer

Json = dict[str, Any]

HERE, HOST = Path(__file__).parent, "127.0.0.1"

FIRST_WORD, WORDS = 1000, 4000  # ids of tokens that are words or parts of words

KNOWN_PIECES = 2000  # pieces of prompts whose tokens are kept

#: vLLM's counters -> the metrics of Dynamo's frontend from which their values come.
COUNTERS = {
    "vllm:prefix_cache_queries_total": "dynamo_frontend_input_sequence_tokens_sum",
    "vllm:prefix_cache_hits_total": "dynamo_frontend_cached_tokens_sum",
    "vllm:prompt_tokens_total": "dynamo_frontend_input_sequence_tokens_sum",
    "vllm:generation_tokens_total": "dynamo_frontend_output_sequence_tokens_sum",
}
SUCCESSES = r"dynamo_frontend_requests_total\{[^}]*status=\"success\"[^}]*\}"

UNKNOWN = re.compile(r"Unsupported parameter\(s\): (.*?)\"")  # the end of the frontend's message about fields that it does not know
WORKER = re.compile(rb'"worker_id":\{[^{}]*\}')  # never in a JSON text, whose quotes have backslashes


class Engine:
    """The mocker and its frontend, which are processes, and requests to them. `ended` gets a message if one of them ends by itself."""

    def __init__(self, options: argparse.Namespace, mocker_options: list[str], http: aiohttp.ClientSession) -> None:
        self.model, self.tokens = options.model, options.blocks * options.block_size
        self.blocks, self.block_size = options.blocks, options.block_size
        self.frontend, self.system = f"http://{HOST}:{options.frontend_port}", f"http://{HOST}:{options.system_port}"
        self.http = http
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        sizes = [f"--block-size={options.block_size}", f"--num-gpu-blocks-override={options.blocks}"]
        environment = {**os.environ, "DYN_SYSTEM_PORT": str(options.system_port)}
        mocker = [str(HERE / "dynamo_mocker.py"), str(options.folder), f"--model-name={options.model}", *sizes, *mocker_options]
        frontend = ["-m", "dynamo.frontend", f"--http-host={HOST}", f"--http-port={options.frontend_port}", "--router-mode=round-robin"]
        self._commands = {"mocker": (mocker, environment), "frontend": (frontend, dict(os.environ))}
        self._running: list[Process] = []
        self._watchers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for name, (words, environment) in self._commands.items():
            process = await asyncio.create_subprocess_exec(sys.executable, *words, env=environment)
            self._running.append(process)
            self._watchers.append(asyncio.create_task(self._watch(name, process)))

    async def _watch(self, name: str, process: Process) -> None:
        code = await process.wait()
        if not self.ended.done():
            self.ended.set_result(f"the {name} has ended by itself (exit code {code})")

    async def stop(self) -> None:
        """Ends both processes, and waits until they have ended."""
        for process in self._running:
            with suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*self._watchers)

    async def get(self, url: str) -> str:
        """Returns the text at a URL, or an empty text if the server does not answer 200."""
        try:
            async with self.http.get(url) as answer:
                return await answer.text() if answer.status == 200 else ""
        except aiohttp.ClientError:
            return ""

    async def is_ready(self) -> bool:
        """Returns whether the frontend has found the mocker."""
        listed = f'"id":"{self.model}"' in await self.get(f"{self.frontend}/v1/models")
        return listed and '"ready":true' in await self.get(f"{self.frontend}/v1/models/{self.model}/ready")


class Shim:
    """The HTTP server of an engine. Its paths and formats are those of vLLM and SGLang."""

    def __init__(self, name: str, engine: Engine, words: Tokenizer) -> None:
        self._named, self._engine, self._words = b'"worker_id":' + json.dumps(name).encode(), engine, words
        self._encoded = lru_cache(KNOWN_PIECES)(lambda text: tuple(words.encode(text).ids))  # text -> tokens
        self._resets = 0  # number of times that the cache was emptied
        self._unknown: set[str] = set()  # fields of requests that the frontend has named as unknown
        self._longest = min(int(str(CONFIG["max_position_embeddings"])), engine.tokens)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self._answer)
        app.router.add_post("/v1/chat/completions/render", self._render)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/health", "/health_generate", "/ping"):
            app.router.add_get(path, self._health)
        for path in ("/loads", "/v1/loads"):
            app.router.add_get(path, self._loads)
        facts = {"/v1/models": self._models(), "/version": {"version": version("ai-dynamo")}}
        facts |= dict.fromkeys(("/server_info", "/get_server_info"), self._server_info())
        facts |= dict.fromkeys(("/model_info", "/get_model_info"), self._model_info())
        for path, fact in facts.items():
            app.router.add_get(path, _saying(fact))
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Forwards a request to the frontend, and its answer as it arrives."""
        body = await _json(request)
        nvext = body.get("nvext") or {}
        known = {name: value for name, value in body.items() if name not in self._unknown}
        known |= self._begun(body)
        known["nvext"] = {**nvext, "extra_fields": [*{*nvext.get("extra_fields", ()), "worker_id"}]}
        try:
            async with self._engine.http.post(f"{self._engine.frontend}{request.path}", json=known) as answer:
                if answer.content_type == "text/event-stream":
                    return await self._forward(answer, request)
                whole = await answer.read()
        except aiohttp.ClientConnectorError as error:
            return web.json_response({"error": {"message": f"the frontend does not answer: {error}", "code": 503}}, status=503)
        if answer.status == 400 and (named := known.keys() & _unknown_fields(whole)):
            self._unknown |= named
            return await self._answer(request)
        return web.Response(body=WORKER.sub(self._named, whole), status=answer.status, content_type=answer.content_type)

    async def _forward(self, answer: aiohttp.ClientResponse, request: web.Request) -> web.StreamResponse:
        """Forwards a stream: all complete events of each read at once.

        Dynamo's frontend sets no TCP_NODELAY, so its next event waits for our acknowledgement of the previous one. It is sent at once,
        because a vLLM server has no such wait.
        """
        connection = answer.connection.transport.get_extra_info("socket") if answer.connection and answer.connection.transport else None
        out, rest = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}), b""
        await out.prepare(request)
        _acknowledge(connection)
        async for read in answer.content.iter_any():
            _acknowledge(connection)
            events, end, rest = (rest + read).rpartition(b"\n\n")
            if end:
                await out.write(WORKER.sub(self._named, events) + end)
        await out.write_eof(rest)
        return out

    @property
    def _beginning(self) -> str:
        """The text before all prompts: another token of the vocabulary after each reset."""
        text: str = self._words.decode([FIRST_WORD + self._resets % WORDS])
        return text if self._resets else ""

    def _begun(self, body: Json) -> Json:
        """Returns the fields of a request that put `_beginning` before its prompt."""
        if "messages" not in body:
            return {"prompt": f"{self._beginning}{body.get('prompt', '')}"}
        given = body.get("chat_template_kwargs") or {}
        return {"chat_template_kwargs": {**given, "beginning": self._beginning}} if self._resets else {}

    def _tokens(self, body: Json) -> list[int]:
        """Returns the tokens of a request's prompt, as the frontend writes it with the template of `tiny_tokenizer`.

        The frontend changes tool calls and contents in parts before that, so prompts with them may differ by some tokens. The prompt is
        encoded in pieces that end where the tokenizer splits texts anyway. Known pieces are not encoded again, because a router may ask
        every engine for the tokens of every call.
        """
        if "messages" not in body:
            return [*self._encoded(f"{self._beginning}{body.get('prompt', '')}")]
        described = [{**tool, "function": _described(tool["function"])} for tool in body.get("tools") or ()]
        tools, *messages = (json.dumps(each, ensure_ascii=False) for each in (described, *body["messages"]))
        pieces = [f"{self._beginning}{tools}", "\n", *(f" {message}," for message in messages)]
        pieces[2] = f"[{pieces[2][1:]}"
        pieces[-1] = f"{pieces[-1][:-1]}]"
        return [token for piece in pieces for token in self._encoded(piece)]

    async def _render(self, request: web.Request) -> web.Response:
        body = await _json(request)
        fields = {"request_id": f"chatcmpl-{uuid4().hex}", "model": self._engine.model, "stream": bool(body.get("stream"))}
        return web.json_response({**fields, "token_ids": self._tokens(body), "sampling_params": {}})

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokens = self._tokens(await _json(request))
        return web.json_response({"count": len(tokens), "max_model_len": self._longest, "tokens": tokens, "token_strs": None})

    async def _reset(self, _: web.Request) -> web.Response:
        self._resets += 1
        return web.Response()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if await self._engine.is_ready() else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        """Returns the metrics that the mocker has under vLLM's names, and those of the frontend under the names that vLLM uses."""
        engine = self._engine
        mocker, frontend = await asyncio.gather(engine.get(f"{engine.system}/metrics"), engine.get(f"{engine.frontend}/metrics"))
        lines = [line for line in mocker.splitlines() if line.startswith(("vllm:", "# HELP vllm:", "# TYPE vllm:"))]
        label = f'model_name="{engine.model}"'
        sizes = f'block_size="{engine.block_size}",num_gpu_blocks="{engine.blocks}"'
        lines += _metric("vllm:cache_config_info", "gauge", f'{sizes},enable_prefix_caching="True",cache_dtype="auto"', 1)
        for name, source in COUNTERS.items():
            lines += _metric(name, "counter", label, _total(frontend, rf"{source}(?:\{{[^}}]*\}})?"))
        lines += _metric("vllm:request_success_total", "counter", f'{label},finished_reason="length"', _total(frontend, SUCCESSES))
        return web.Response(text="\n".join([*lines, ""]), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _loads(self, _: web.Request) -> web.Response:
        mocker = await self._engine.get(f"{self._engine.system}/metrics")
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        running, waiting, usage = (_total(mocker, rf"vllm:{name}(?:\{{[^}}]*\}})?") for name in names)
        requests = {"num_running_reqs": int(running), "num_waiting_reqs": int(waiting), "num_total_reqs": int(running + waiting)}
        tokens = {"num_used_tokens": int(usage * self._engine.tokens), "max_total_num_tokens": self._engine.tokens, "token_usage": usage}
        return web.json_response({"dp_rank_count": 1, "loads": [{"dp_rank": 0, **requests, **tokens}]})

    def _models(self) -> Json:
        model = {"id": self._engine.model, "root": self._engine.model, "max_model_len": self._longest}
        return {"object": "list", "data": [{**model, "object": "model", "created": 0, "owned_by": "vllm"}]}

    def _model_info(self) -> Json:
        return {"model_path": self._engine.model, "tokenizer_path": self._engine.model, "is_generation": True}

    def _server_info(self) -> Json:
        limits = {"max_model_len": self._longest, "max_total_num_tokens": self._engine.tokens, "page_size": self._engine.block_size}
        return {**self._model_info(), "served_model_name": self._engine.model, "dp_size": 1, "tp_size": 1, **limits}


def _saying(fact: Json) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(fact)

    return handle


async def _json(request: web.Request) -> Json:
    """Returns the object in the body of a request. Raises HTTPBadRequest if there is none."""
    try:
        body = await request.json()
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="the body is not a JSON object")
    return body


def _unknown_fields(answer: bytes) -> set[str]:
    """Returns the fields that the frontend names as unknown in its answer to a request."""
    found = UNKNOWN.search(answer.decode(errors="replace"))
    return set(re.findall(r"`([^`]+)`", found[1])) if found else set()


def _described(function: Json) -> Json:
    """Returns a tool's function with its keys in the order of the frontend, which also adds an empty description if there is none."""
    first: Json = {key: function[key] for key in ("name", "description") if key in function}
    return {**first, **function, "description": function.get("description", "")}


def _total(page: str, series: str) -> float:
    """Returns the sum of all series of a Prometheus page that match a regular expression."""
    return sum(float(value) for value in re.findall(rf"^{series} (\S+)$", page, re.MULTILINE))


def _metric(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE {name.removesuffix('_total')} {kind}"
    yield f"{name}{{{labels}}} {value:g}" if value < 1e6 else f"{name}{{{labels}}} {value:.0f}"


def _acknowledge(connection: socket.socket | None) -> None:
    """Makes the kernel send the acknowledgement of what was read now, and not up to 40 ms later."""
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description="One engine of Dynamo's mocker that looks like a vLLM server.", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the folder of the model, which is created")
    for name in ("name", "model"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "frontend-port", "system-port", "blocks"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--block-size", type=int, default=16)
    return parser.parse_known_args()


async def main() -> str:
    """Runs the engine until SIGTERM. Returns an empty text, or the reason if it ended before."""
    options, mocker_options = _options()
    make(options.folder)
    words = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    connector, unlimited = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=unlimited) as http:
        engine = Engine(options, mocker_options, http)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, engine.ended.cancel)
        # Without the cancellation, the mocker would go on with answers whose client has left.
        runner = web.AppRunner(Shim(options.name, engine, words).application(), access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await engine.start()
            await web.TCPSite(runner, HOST, options.port).start()
            return await engine.ended
        except asyncio.CancelledError:
            return ""
        finally:
            await engine.stop()
            await runner.cleanup()


if __name__ == "__main__":
    sys.exit(uvloop.run(main()) or 0)
