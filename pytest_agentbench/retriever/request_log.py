"""The retriever's log: a line of JSON for each request, on stderr, where the log of whatever started the process is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import orjson

from pytest_agentbench.lib.child import LOG
from pytest_agentbench.records import Json


def where_it_is() -> Json:
    """Returns the path of the log as `log`, or an empty dictionary in a process that was started by hand."""
    path = os.environ.get(LOG)
    return {"log": path} if path else {}


@contextmanager
def logged() -> Iterator[Json]:
    """Writes a line when the block has ended: the time when it began, the seconds that it took, and what was put into the dictionary."""
    facts: Json = {}
    time_of_day, began = datetime.now(UTC), time.monotonic()
    try:
        yield facts
    except BaseException as error:  # a client that went away, too, which cancels its request
        facts["error"] = repr(error)
        raise
    finally:
        seconds = round(time.monotonic() - began, 4)
        line = {"time": time_of_day.isoformat(timespec="milliseconds"), **facts, "seconds": seconds}
        sys.stderr.write(f"{orjson.dumps(line).decode()}\n")
        sys.stderr.flush()
