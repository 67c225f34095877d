"""Changes to request bodies on the way to the backend: stream the answer, report the usage, add labels and a salt (against cache hits).

`python -m pytest_agentbench.tap.upgrade` changes one large body from stdin to stdout, so that parsing it does not block the tap.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from typing import NamedTuple

from pytest_agentbench.lib import json_text
from pytest_agentbench.records import Json
from pytest_agentbench.tap.agent_hints import asks_for_prefill
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.dialects.reader import encode_request, without_running_usage
from pytest_agentbench.tap.routing_hints import CHAT, merged

#: Size in bytes from which a body is parsed in its own process. A megabyte takes about 4 ms.
LARGE = 1 << 20

#: Maximum number of processes for large bodies at a time.
MOST_PROCESSES = 2

_slots = asyncio.Semaphore(MOST_PROCESSES)


class BackendBody(NamedTuple):
    """A request body as the backend gets it, and facts about it."""

    body: bytes
    model: str = ""
    streamed: bool = False  # whether the agent requested a stream
    upgraded: bool = False  # whether only the tap requested a stream
    hides_usage: bool = False  # whether only the tap requested the usage of the stream
    speculative: bool = False  # whether it asks Dynamo for a speculative prefill
    original: Json | None = None  # parsed body of the agent; None if it is not a JSON object, or was parsed in another process


class BodyChanges(NamedTuple):
    """The changes to make to a request body."""

    upgrade: bool  # request a stream for a call that does not stream
    usage: bool  # request the usage for a call that streams
    fields: Json  # labels to add; values that the agent sent win
    salt: str = ""  # text to put before the system prompt
    usage_once: bool = False  # request the usage of a stream only at its end, because a router uses the first report


def apply_changes(route: str, body: bytes, changes: BodyChanges) -> BackendBody:
    """Returns a request body with the changes made. A body that is not a JSON object is not changed; the backend will reject it."""
    dialect = DIALECTS[route]
    original = json_text.json_object(body)
    if original is None:
        return BackendBody(body)
    model, streamed = str(original.get("model") or ""), bool(original.get("stream"))
    request = without_running_usage(original) if changes.usage_once else original
    if changes.fields:
        request = merged(request, changes.fields)
    speculative = route in CHAT and asks_for_prefill(request)
    if changes.salt:
        request = dialect.salted(request, changes.salt)
    if not streamed:
        stream = dialect.as_stream(request) if changes.upgrade else None
        changed = stream or _changed(request, original) or body
        return BackendBody(changed, model, upgraded=stream is not None, speculative=speculative, original=original)
    with_usage = dialect.with_usage(request) if changes.usage or changes.usage_once else None
    changed = with_usage or _changed(request, original) or body
    hides_usage = with_usage is not None
    return BackendBody(changed, model, streamed=True, hides_usage=hides_usage, speculative=speculative, original=original)


async def apply_in_subprocess(route: str, body: bytes, changes: BodyChanges) -> BackendBody:
    """Runs `apply_changes` in another process, because the body is large. If that process fails, runs it in this one."""
    head = json_text.dumps({"route": route, "changes": changes}) + b"\n"
    try:
        async with _slots:
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE)
            answer, _ = await process.communicate(head + body)
    except OSError:
        return apply_changes(route, body, changes)
    if process.returncode:
        return apply_changes(route, body, changes)
    facts, _, changed = answer.partition(b"\n")
    return BackendBody(changed or body, **json_text.loads(facts))


def _changed(request: Json, original: Json) -> bytes | None:
    """Returns the body of a changed request, or None if it was not changed or cannot be encoded."""
    return None if request is original else encode_request(request)


def main() -> None:
    question, _, body = sys.stdin.buffer.read().partition(b"\n")
    head = json_text.loads(question)
    changed, *facts, _ = apply_changes(head["route"], body, BodyChanges(*head["changes"]))
    sys.stdout.buffer.write(json_text.dumps(dict(zip(BackendBody._fields[1:-1], facts, strict=True))) + b"\n")
    sys.stdout.buffer.write(b"" if changed is body else changed)


if __name__ == "__main__":
    main()
