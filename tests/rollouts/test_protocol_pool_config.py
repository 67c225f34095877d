"""The fields of messages to the pool that are valid only on the controller's host."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.lib.record_fields import is_record, parts_of
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.protocol import HOST_BOUND, PoolConfig


def records_in(kind: object, known: set[type]) -> Iterator[type]:
    """Yields a record and all records that it contains, each once."""
    for inner in typing.get_args(kind):
        yield from records_in(inner, known)
    if isinstance(kind, type) and is_record(kind) and kind not in known:
        known.add(kind)
        yield kind
        for part in parts_of(kind):
            yield from records_in(part.kind, known)


SENT = {*records_in(PoolConfig | protocol.ToPool, set())}


MARKED = re.compile(r"^    (\w+): [^#\n]*# .*\bthis host\b", re.MULTILINE)


def test_the_fields_of_one_host() -> None:
    """HOST_BOUND has each field of a message to the pool that is a path, and each whose comment says that it is of this host."""
    marked = {(kind, name) for kind in SENT for name in MARKED.findall(inspect.getsource(kind))}
    paths = {(kind, part.name) for kind in SENT for part in parts_of(kind) if Path in (part.kind, *typing.get_args(part.kind))}

    assert marked | paths <= {*HOST_BOUND}


def test_the_list_names_fields_that_are_sent() -> None:
    """Each entry of the list is a field of a record that is sent to a pool."""
    assert {*HOST_BOUND} <= {(kind, part.name) for kind in SENT for part in parts_of(kind)}
