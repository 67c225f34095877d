"""The values that messages.jsonl consists of (requests, messages, replies): their ids, their lines, and the styles of JSON in requests.

The first letter of an id says what it names: `f` a form (a request without its messages and other large parts), `p` a part of a form,
`m` a message, `n` a node (a message with all messages before it), `r` a reply. The rest is a hash of the content.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from pytest_agentbench.lib import json_text

FILE = "messages.jsonl"
FORM, PART, MESSAGE, NODE, REPLY = "f", "p", "m", "n", "r"
ALL, CALLS, NONE = "all", "calls", "none"  # what a session keeps: everything; the agent's own calls, without tools; nothing
LARGEST_VALUE = 4_000_000  # bytes; of a larger value only the size is kept
OMITTED = "agentbench_omitted_bytes"  # only key of the object that replaces a value that is too large
_HASH_BYTES = 12  # of the SHA-256. Among 10 million values, two different ones have the same hash with a probability of 1e-15


#: An id in a JSON text, with its quotes.
QUOTED_ID = re.compile(rb'"([%b][\w-]{16})"' % f"{FORM}{PART}{MESSAGE}{NODE}{REPLY}".encode())


def value_id(kind: str, text: bytes) -> str:
    """Returns the id of a value with this JSON text: its kind and the first 12 bytes of the SHA-256 of the text, base64url."""
    return kind + urlsafe_b64encode(sha256(text).digest()[:_HASH_BYTES]).decode()


def node_id(before: str, message: str) -> str:
    """Returns the id of a node. `before` is the id of the node with the messages before it, or empty."""
    return value_id(NODE, f"{before}{message}".encode())


class ValueLine(NamedTuple):
    """A line of messages.jsonl with a value: a message, a reply, a form, or a part of a form. `text` is its JSON."""

    id: str
    text: bytes

    def written(self) -> bytes:
        return b'{"id":"%b","value":%b}' % (self.id.encode(), self.text)


class NodeLine(NamedTuple):
    """A line of messages.jsonl with a node: a message, and the node before it, which stands for all earlier messages."""

    id: str
    before: str  # id of the node with the messages before it; empty for the first message
    message: str  # id of the message

    def written(self) -> bytes:
        return b'{"id":"%b","before":"%b","message":"%b"}' % (self.id.encode(), self.before.encode(), self.message.encode())


_ID, _VALUE, _BEFORE, _MESSAGE = b'{"id":"', b'","value":', b'","before":"', b'","message":"'


def parsed(line: bytes) -> ValueLine | NodeLine:
    """Parses a line of messages.jsonl, without its newline. Raises ValueError if it is neither a ValueLine nor a NodeLine."""
    head, _, text = line.partition(_VALUE)
    if text and head.startswith(_ID) and b'"' not in head[len(_ID) :]:
        return ValueLine(head[len(_ID) :].decode(), text[:-1])
    head, _, rest = line.partition(_BEFORE)
    before, middle, message = rest.partition(_MESSAGE)
    if not middle or not head.startswith(_ID) or not message.endswith(b'"}'):
        raise ValueError(f"{line[:80]!r} is not a line of messages.jsonl")
    return NodeLine(head[len(_ID) :].decode(), before.decode(), message[:-2].decode())


def _like_go(value: Any) -> bytes:
    """Writes JSON as Go's encoding/json does, which escapes characters that matter in HTML and JavaScript."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for each in "<>&\u2028\u2029":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text.encode()


#: Name of a way to write JSON -> the function that writes it. Each of them is what some clients do.
STYLES: Mapping[str, Callable[[Any], bytes]] = {
    "orjson": json_text.dumps,  # the built-in client; also JavaScript
    "compact": lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(),  # the OpenAI SDK for Python, httpx
    "default": lambda value: json.dumps(value).encode(),  # requests, aiohttp, LiteLLM
    "ascii": lambda value: json.dumps(value, separators=(",", ":")).encode(),
    "spaced": lambda value: json.dumps(value, ensure_ascii=False).encode(),
    "go": _like_go,
}


def style_of(value: Any, text: bytes, first: str = "") -> str:
    """Returns the name of the style (spaces and escapes) with which `value` becomes exactly this JSON text.

    Returns an empty string if no style of STYLES does that. The style `first` is tried first.
    """
    for name in sorted(STYLES, key=lambda name: name != first):
        try:
            if STYLES[name](value) == text:
                return name
        except (ValueError, RecursionError):  # lone surrogates have no UTF-8 form; another style escapes them
            continue
    return ""
