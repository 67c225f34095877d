"""What may be asked under a rollout's address: LLM calls, which are measured, and a few things besides that ask nothing of the model.

Servers, and routers before them, read a path each in its own way: decoded, without its last slash, `//` as `/`, dots resolved, whatever
its case. So what is relayed is on a list and written as it is there; all else is refused, or a call could reach the model unmeasured.
"""

from __future__ import annotations

import time
import zlib
from urllib.parse import unquote

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.request import Request

#: What a GET or HEAD may begin with, and go on with as it likes: models, and answers that are still being made.
READ = ("models", "responses")

#: What a POST may ask that is no call.
ASIDE = (
    *("/embeddings", "/rerank", "/score", "/classify", "/pooling", "/moderations"),
    *("/tokenize", "/detokenize", "/messages/count_tokens", "/responses/input_tokens"),
)


def split_target(target: str) -> tuple[str, str]:
    """(token, path behind it without /v1) of /r/TOKEN/v1/chat/completions; an empty token for any other path."""
    parts = target.split("/", 3)
    if len(parts) < 4 or parts[0] or parts[1] != "r":
        return "", target
    rest = "/" + parts[3]
    return parts[2], rest[3:] if rest[:4] in ("/v1", "/v1/", "/v1?") else rest


def refusal(method: bytes, route: str) -> tuple[int, str] | None:
    """(HTTP status, sentence) for a request that is not relayed; `route` is its path behind the address, without a query."""
    if method == b"POST" and (route in DIALECTS or route in ASIDE):
        return None
    if method in (b"GET", b"HEAD") and _is_read(route):
        return None
    status = 405 if route in DIALECTS or route in ASIDE or _is_read(route) else 404
    known = f"POST {', '.join(DIALECTS)} are LLM calls, written exactly so; besides, GET /models and POST {', '.join(ASIDE)} pass"
    asked = f"{method.decode()} {beginning(route, 200)}"
    return status, f"{asked} is not relayed, because it would not be measured: behind OPENAI_BASE_URL, {known}"


def refused(request: Request, sentence: str, kind: str = "refused") -> LLMCall:
    """The record of a request that is not relayed."""
    return LLMCall(
        received_ns=request.received_ns,
        sent_ns=None,
        ended_ns=time.monotonic_ns(),
        called_ns=request.called_ns,
        dialect=DIALECTS[request.route].name if request.route in DIALECTS else "",
        request_bytes=len(request.body),
        request_crc=zlib.crc32(request.body),
        error_kind=kind,
        error=sentence,
    )


def _is_read(route: str) -> bool:
    first, *others = unquote(route).split("/")[1:] or [""]
    return first in READ and route.startswith(f"/{first}") and not {"", ".", ".."}.intersection(others)
