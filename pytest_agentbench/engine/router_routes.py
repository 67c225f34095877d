"""The paths that routers ask of an engine beside chat completions: tokens of a prompt, facts about the server and its model, and its load.

Without `/v1/chat/completions/render` vllm-router's policy `cache_aware` routes by load alone and says nothing. Without a served model name
sglang-router calls the model `unknown`. The formats are those of vLLM (`render`, `tokenize`, `version`) and of SGLang (the others).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
from aiohttp import web

from pytest_agentbench.engine.answer import json_response
from pytest_agentbench.engine.chat import ApiError, check_model, parse_chat, parse_object, token_limit
from pytest_agentbench.engine.token_blocks import prompt_tokens, tokenise
from pytest_agentbench.records import Json


class Load(NamedTuple):
    """What an engine does at the moment."""

    running: int  # requests being answered
    waiting: int  # requests in the queue
    used_blocks: int  # blocks of the KV cache that running requests hold


class RouterRoutes:
    """Answers what routers ask about one engine. It changes nothing in the engine, and counts no request."""

    def __init__(self, model: str, longest: int, capacity: int, block_size: int, load: Callable[[], Load]) -> None:
        """Takes the model's name and length in tokens, the number and size of the cache's blocks, and a function that returns the load."""
        self._model, self._longest = model, longest
        self._tokens, self._block_size = capacity * block_size, block_size
        self._load = load
        self._version = version("pytest-agentbench")

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Adds the paths to an application."""
        router.add_post("/v1/chat/completions/render", self._render)
        router.add_post("/tokenize", self._tokenize)
        answers: Mapping[tuple[str, ...], Callable[[], Any]] = {
            ("/version",): lambda: {"version": self._version},
            ("/server_info", "/get_server_info"): self._server_info,
            ("/model_info", "/get_model_info"): self._model_info,
            ("/loads", "/v1/loads"): self._loads,
            ("/get_load",): self._get_load,
        }
        for paths, answer in answers.items():
            for path in paths:
                router.add_get(path, _handler(answer))

    async def _render(self, http: web.Request) -> web.Response:
        """Returns the tokens of a chat request's prompt without answering it, as vLLM's GenerateRequest."""
        request = parse_chat(await http.read(), self._model)
        limit = token_limit(request)
        sampling = {} if limit is None else {"max_tokens": limit}
        body = {"request_id": f"chatcmpl-{uuid4().hex}", "token_ids": token_ids(prompt_tokens(request)), "sampling_params": sampling}
        return json_response(orjson.dumps({**body, "model": self._model, "stream": bool(request.get("stream"))}))

    async def _tokenize(self, http: web.Request) -> web.Response:
        """Returns the tokens of a text (`prompt`) or of a chat request (`messages`), as vLLM's TokenizeResponse."""
        body = await http.read()
        request = parse_object(body)
        if "messages" in request:
            tokens = prompt_tokens(parse_chat(orjson.dumps({"model": self._model, **request}), self._model))
        elif isinstance(request.get("prompt"), str):
            check_model({"model": self._model, **request}, self._model)
            tokens = tokenise(request["prompt"])
        else:
            raise ApiError("'prompt' must be a string, or 'messages' a list of messages.", "prompt")
        texts = tokens if request.get("return_token_strs") else None
        answer = {"count": len(tokens), "max_model_len": self._longest, "tokens": token_ids(tokens), "token_strs": texts}
        return json_response(orjson.dumps(answer))

    def _server_info(self) -> Json:
        limits = {"max_model_len": self._longest, "max_total_num_tokens": self._tokens, "page_size": self._block_size}
        return {**self._model_info(), "served_model_name": self._model, "version": self._version, "dp_size": 1, "tp_size": 1, **limits}

    def _model_info(self) -> Json:
        """Returns facts about the model. It has no files, and sglang-router would try to download a tokenizer from any other path."""
        return {"model_path": "", "tokenizer_path": "", "is_generation": True, "preferred_sampling_params": None}

    def _loads(self) -> Json:
        load = self._load()
        used = load.used_blocks * self._block_size
        requests = {"num_running_reqs": load.running, "num_waiting_reqs": load.waiting, "num_total_reqs": load.running + load.waiting}
        tokens = {"num_used_tokens": used, "num_total_tokens": used, "max_total_num_tokens": self._tokens}
        rank = {"dp_rank": 0, **requests, **tokens, "token_usage": used / self._tokens}
        return {"timestamp": datetime.now(UTC).isoformat(), "version": self._version, "dp_rank_count": 1, "loads": [rank]}

    def _get_load(self) -> list[Json]:
        """Returns the load in the older format of SGLang, which sglang-router 0.3.2 requests."""
        load = self._load()
        requests = {"num_reqs": load.running + load.waiting, "num_waiting_reqs": load.waiting}
        return [{"dp_rank": 0, **requests, "num_tokens": load.used_blocks * self._block_size}]


def token_ids(tokens: list[str]) -> list[int]:
    """Returns a number of 31 bits for each token. Equal tokens have equal numbers in every engine, so that a router can compare prompts."""
    return [zlib.crc32(token.encode()) >> 1 for token in tokens]


def _handler(answer: Callable[[], Any]) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return json_response(orjson.dumps(answer()))

    return handle
