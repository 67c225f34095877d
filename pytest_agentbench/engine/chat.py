"""Chat Completions requests and the replies of policies. Requests are checked here, so that the other modules can rely on their form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import orjson
from pydantic import Field

from pytest_agentbench.engine.config import Milliseconds
from pytest_agentbench.lib.config import Spec
from pytest_agentbench.records import Json

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
RESPONSE_FORMATS = ("text", "json_object", "json_schema")
TOOL_CHOICES = ("auto", "none", "required")


class ApiError(Exception):
    """An error answer to a request, in OpenAI's format."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> bytes:
        kind = {429: "rate_limit_error"}.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return orjson.dumps({"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}})


def parse_chat(body: bytes, model: str) -> Json:
    """Returns the request in `body`. Raises ApiError if it is invalid, or is not for `model`."""
    request = parse_object(body)
    check_model(request, model)
    _check_messages(request.get("messages"))
    _check_tools(request.get("tools"))
    _check_tool_choice(request.get("tool_choice"), tool_names(request))
    _check_sampling(request)
    _check_response_format(request.get("response_format"))
    return request


def parse_object(body: bytes) -> Json:
    """Returns the JSON object in `body`. Raises ApiError if it has none."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"The body is not valid JSON: {error}.") from None
    _require(isinstance(request, dict), "The body must be a JSON object.", None)
    return dict(request)


def content_text(message: Mapping[str, Any]) -> str:
    """Returns the text of a message, whose content is a text or a list of parts. Parts that are not text are shown as their type."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of the last user message and of the user messages right before it, or an empty string."""
    end = exchange_start(messages)
    start = end
    while start and messages[start - 1]["role"] == "user":
        start -= 1
    return "\n".join(map(content_text, messages[start:end]))


def exchange_start(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the index of the first message after the last user message."""
    return next((index for index in range(len(messages), 0, -1) if messages[index - 1]["role"] == "user"), 0)


def tool_names(request: Mapping[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request.get("tools") or ()]


def forced_tool(request: Mapping[str, Any]) -> str | None:
    """Returns the name of the function in `tool_choice`, or None if it names none."""
    choice = request.get("tool_choice")
    return str(choice["function"]["name"]) if isinstance(choice, Mapping) else None


def token_limit(request: Mapping[str, Any]) -> int | None:
    """Returns the maximum number of tokens in the answer, or None."""
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    return None if limit is None else int(limit)


def asks_for_worker(request: Mapping[str, Any]) -> bool:
    """Returns whether the answer should name the engine. Dynamo's clients ask for the names of workers in this way."""
    nvext = request.get("nvext")
    fields = nvext.get("extra_fields") if isinstance(nvext, dict) else None
    return isinstance(fields, list) and "worker_id" in fields


def stop_texts(request: Mapping[str, Any]) -> list[str]:
    stop = request.get("stop") or []
    return [stop] if isinstance(stop, str) else list(stop)


def _require(holds: bool, message: str, param: str | None) -> None:
    if not holds:
        raise ApiError(message, param)


def check_model(request: Json, model: str) -> None:
    """Raises ApiError unless the request is for `model`."""
    name = request.get("model")
    _require(isinstance(name, str), "'model' is missing or not a string.", "model")
    if name != model:
        raise ApiError(f"The model {name!r} does not exist; this server has {model!r}.", "model", 404, "model_not_found")


def _check_messages(messages: Any) -> None:
    _require(isinstance(messages, list) and len(messages) > 0, "'messages' must be a list with at least one message.", "messages")
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        _require(isinstance(message, dict), f"'{param}' must be an object.", param)
        _require(message.get("role") in ROLES, f"'{param}.role' must be one of {', '.join(ROLES)}.", f"{param}.role")
        _require(_is_content(message.get("content")), f"'{param}.content' must be a string or a list of parts.", f"{param}.content")
        calls = message.get("tool_calls")
        _require(calls is None or _is_calls(calls), f"'{param}.tool_calls' must be a list of function calls.", f"{param}.tool_calls")
        for place, call in enumerate(calls or ()):
            at = f"{param}.tool_calls[{place}].function.arguments"
            _require(_is_object(call["function"]["arguments"]), f"'{at}' must be a JSON object.", at)


def _is_content(content: Any) -> bool:
    return content is None or isinstance(content, str) or (isinstance(content, list) and all(isinstance(part, dict) for part in content))


def _is_calls(calls: Any) -> bool:
    return isinstance(calls, list) and all(
        _has_name(call) and isinstance(call["function"].get("arguments"), str) and isinstance(call.get("id"), str) for call in calls
    )


def _is_object(arguments: str) -> bool:
    """Returns whether arguments are a JSON object or empty. Servers that render chat templates require this."""
    try:
        return isinstance(orjson.loads(arguments or "{}"), dict)
    except orjson.JSONDecodeError:
        return False


def _has_name(entry: Any) -> bool:
    function = entry.get("function") if isinstance(entry, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"] != ""


def _check_tools(tools: Any) -> None:
    _require(tools is None or isinstance(tools, list), "'tools' must be a list.", "tools")
    for index, tool in enumerate(tools or ()):
        param = f"tools[{index}]"
        _require(_has_name(tool) and tool.get("type") == "function", f"'{param}' must be of type function and have a name.", param)
        parameters = tool["function"].get("parameters")
        _require(parameters is None or isinstance(parameters, dict), f"'{param}.function.parameters' must be an object.", param)


def _check_tool_choice(choice: Any, names: list[str]) -> None:
    if choice is None or choice == "none":
        return
    _require(bool(names), "'tool_choice' is only allowed when 'tools' are specified.", "tool_choice")
    _require(
        choice in TOOL_CHOICES or _has_name(choice), f"'tool_choice' must be {', '.join(TOOL_CHOICES)} or name a function.", "tool_choice"
    )
    if not isinstance(choice, str):
        name = choice["function"]["name"]
        _require(name in names, f"'tool_choice' names {name!r}, which is not in 'tools'.", "tool_choice")


def _check_sampling(request: Json) -> None:
    for key in ("max_tokens", "max_completion_tokens"):
        _require(_is_limit(request.get(key)), f"'{key}' must be a whole number of at least 1.", key)
    fewest, limit = request.get("min_tokens") or 0, token_limit(request)
    _require(type(fewest) is int and fewest >= 0, "'min_tokens' must be a whole number of at least 0.", "min_tokens")
    _require(limit is None or fewest <= limit, f"'min_tokens' must be at most 'max_tokens', which is {limit}.", "min_tokens")
    endless = request.get("ignore_eos")
    _require(endless in (None, True, False), "'ignore_eos' must be true or false.", "ignore_eos")
    _require(not endless or limit is not None, "'ignore_eos' is only allowed with 'max_tokens', where the answer then ends.", "ignore_eos")
    _require(request.get("n") in (None, 1), "'n' must be 1.", "n")
    _require(request.get("stream") in (None, True, False), "'stream' must be true or false.", "stream")
    options = request.get("stream_options")
    _require(options is None or isinstance(options, dict), "'stream_options' must be an object.", "stream_options")
    _require(options is None or bool(request.get("stream")), "'stream_options' is only allowed when 'stream' is true.", "stream_options")
    stops = request.get("stop") or []
    is_text = isinstance(stops, str) or (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops))
    _require(is_text, "'stop' must be a string or a list of strings.", "stop")


def _check_response_format(value: Any) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    _require(value is None or kind in RESPONSE_FORMATS, f"'response_format.type' must be {', '.join(RESPONSE_FORMATS)}.", "response_format")
    form = value.get("json_schema") if kind == "json_schema" else {"schema": {}}
    has_schema = isinstance(form, dict) and isinstance(form.get("schema"), dict)
    _require(has_schema, "'response_format.json_schema.schema' must be an object.", "response_format")


def _is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


TokenCount = Annotated[int, Field(ge=0)]  # number of tokens of the answer before a fault or pause


class ReplyCall(NamedTuple):
    """One tool call of an answer."""

    name: str
    arguments: Mapping[str, Any] | str  # a text is sent unchanged, so it may be malformed


class Stall(Spec):
    """A pause in the middle of an answer."""

    after: TokenCount
    ms: Milliseconds  # delay of everything after the pause


class Delivery(Spec):
    """The timing and the faults of one answer. The defaults are the engine's own speed and no fault."""

    ttft_ms: Milliseconds | None = None  # None: the engine's
    itl_ms: Milliseconds | None = None  # None: the engine's
    tokens_per_chunk: int = Field(default=1, ge=1)
    stall: Stall | None = None
    split_utf8: bool = False  # whether writes end inside multi-byte characters
    status: int | None = Field(default=None, ge=400, le=599)  # HTTP status of an error answer
    message: str = "The script answers this request with an error."  # message of the error answer
    retry_after: float | None = Field(default=None, ge=0)  # Retry-After header of the error answer, seconds
    malformed_json_after: TokenCount | None = None  # position of an event that is not JSON
    error_event_after: TokenCount | None = None  # position of an error object in an answer with status 200
    cut_after: TokenCount | None = None  # position at which the connection is closed
    empty: bool = False  # whether the answer is a 200 without a body
    exit: bool = False  # whether the process ends instead of answering


NO_FAULTS = Delivery()


@dataclass(frozen=True)
class PolicyReply:
    """The answer of a policy: text, then tool calls."""

    text: str = ""
    tool_calls: tuple[ReplyCall, ...] = ()
    finish_reason: str | None = None  # None: `stop` or `tool_calls`, as follows from the answer
    delivery: Delivery = NO_FAULTS


class Policy(Protocol):
    """Decides the answers. It gets only the request body, which the server has checked."""

    def reply(self, request: Mapping[str, Any]) -> PolicyReply: ...
