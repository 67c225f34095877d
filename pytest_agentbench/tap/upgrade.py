"""What the backend is asked instead of what the agent asked: the same, as a stream, or with its usage.

`python -m pytest_agentbench.tap.upgrade` does it for one large body, from stdin to stdout, so that the relay is not held up.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from typing import NamedTuple

from pytest_agentbench.lib import json_text
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.dialects.reader import encode_request, without_running_usage
from pytest_agentbench.tap.routing_hints import merged

#: Bytes from which on a body is parsed in a process of its own: a megabyte takes about 4 ms.
LARGE = 1 << 20

#: Processes for large bodies at a time.
MOST_PROCESSES = 2

_slots = asyncio.Semaphore(MOST_PROCESSES)


class BackendBody(NamedTuple):
    """A request's body as the backend gets it, and what is known of it."""

    body: bytes
    model: str = ""
    streamed: bool = False  # whether the agent asked for a stream
    upgraded: bool = False  # the backend streams, and the agent does not know
    hides_usage: bool = False  # the backend tells the usage, and the agent did not ask for it


class BodyChanges(NamedTuple):
    """What the backend is to be asked instead of what the agent asked."""

    upgrade: bool  # make a stream of a call that does not stream
    usage: bool  # ask for the usage of one that does
    fields: Json  # labels; what the agent wrote itself counts more
    salt: str = ""  # before the system prompt
    usage_once: bool = False  # a stream has to tell its usage, and only at its end; whoever is on the way believes the first one


def apply_changes(route: str, body: bytes, changes: BodyChanges) -> BackendBody:
    """The request that a wish makes of a body.

    One that is not understood stays as it is, and the backend will say what it thinks of it.
    """
    dialect = DIALECTS[route]
    original = json_text.json_object(body)
    if original is None:
        return BackendBody(body)
    model, streamed = str(original.get("model") or ""), bool(original.get("stream"))
    request = without_running_usage(original) if changes.usage_once else original
    if changes.fields:
        request = merged(request, changes.fields)
    if changes.salt:
        request = dialect.salted(request, changes.salt)
    if not streamed:
        stream = dialect.as_stream(request) if changes.upgrade else None
        return BackendBody(stream or _changed(request, original) or body, model, upgraded=stream is not None)
    with_usage = dialect.with_usage(request) if changes.usage or changes.usage_once else None
    return BackendBody(with_usage or _changed(request, original) or body, model, streamed=True, hides_usage=with_usage is not None)


async def apply_in_subprocess(route: str, body: bytes, changes: BodyChanges) -> BackendBody:
    """The same for a large body, in another process; here where there can be none."""
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
    """The body of a request that is another than the original; None where it is the same, or cannot be written."""
    return None if request is original else encode_request(request)


def main() -> None:
    question, _, body = sys.stdin.buffer.read().partition(b"\n")
    head = json_text.loads(question)
    changed, *facts = apply_changes(head["route"], body, BodyChanges(*head["changes"]))
    sys.stdout.buffer.write(json_text.dumps(dict(zip(BackendBody._fields[1:], facts, strict=True))) + b"\n")
    sys.stdout.buffer.write(b"" if changed is body else changed)


if __name__ == "__main__":
    main()
