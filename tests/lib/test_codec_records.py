"""Every record and message survives the conversion to JSON and back, and a damaged field is named."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import pytest_agentbench
from pytest_agentbench.gate.evidence import RunFacts, Trial
from pytest_agentbench.launchers import ray_driver
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.codec import plain, read, received
from pytest_agentbench.lib.json_text import dumps_any, loads
from pytest_agentbench.lib.record_fields import is_array, is_record, parts_of
from pytest_agentbench.lib.wire import Messages, OtherVersion, Refused
from pytest_agentbench.rollouts import questions_of_tests
from pytest_agentbench.rollouts.protocol import PoolConfig
from pytest_agentbench.runs.attempts import AttemptEntry
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.runs.sessions import Session
from pytest_agentbench.suites.suite import PoolSuite
from tests.record_values import damages, values_of

PACKAGE = Path(pytest_agentbench.__file__).parent


def module(file: Path) -> ModuleType:
    return importlib.import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))


def records_of(home: ModuleType) -> Iterator[type]:
    """Yields the records that a module defines."""
    for _, kind in inspect.getmembers(home, is_record):
        if kind.__module__ == home.__name__:
            yield kind


#: Modules with messages. The engine's is left out, because its records are results of policies, which are not sent.
PROTOCOLS = [
    wire,
    questions_of_tests,
    ray_driver,
    *(module(file) for file in PACKAGE.rglob("*protocol.py") if file.parent.name != "engine"),
]
READERS = [(name, each) for home in PROTOCOLS for name, each in vars(home).items() if isinstance(each, Messages)]
MESSAGES = [kind for home in PROTOCOLS for kind in records_of(home)]
RECORDS = [kind for file in sorted((PACKAGE / "records").glob("[a-z]*.py")) for kind in records_of(module(file))]
FILES = [Session, RunFacts, Trial, Run, PoolSuite, PoolConfig, *typing.get_args(AttemptEntry)]
KINDS = [*RECORDS, *MESSAGES, *FILES]

# Failures are not shrunk, because that takes too long for large records.
few = settings(max_examples=8, suppress_health_check=[*HealthCheck], deadline=None, phases=[Phase.generate])


def name_of(kind: type) -> str:
    return f"{kind.__module__.removeprefix('pytest_agentbench.')}.{kind.__name__}"


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@few
@given(st.data())
def test_a_record_comes_back(kind: type, data: st.DataObject) -> None:
    """A record that is read from a file or a message equals the written one."""
    record = data.draw(values_of(kind))
    written = loads(dumps_any(plain(record)))

    assert record == read(kind, written) == received(kind, written)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if [*damages(kind)]], ids=name_of)
@few
@given(st.data())
def test_a_damaged_field_is_named(kind: type, data: st.DataObject) -> None:
    """A value of a wrong type causes an error that begins with the place of the value."""
    written = loads(dumps_any(plain(data.draw(values_of(kind)))))
    field, value = data.draw(st.sampled_from([*damages(kind)]))
    place: Any = [part.name for part in parts_of(kind)].index(field) if is_array(kind) else field
    written[place] = value

    with pytest.raises(ValueError, match=rf"^{re.escape(f'[{place}]' if is_array(kind) else field)}\W"):
        received(kind, written)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not is_array(kind) and parts_of(kind)], ids=name_of)
@few
@given(st.data())
def test_a_missing_field_is_named(kind: type, data: st.DataObject) -> None:
    """A message with a missing field is refused, even if the field has a default."""
    written = loads(dumps_any(plain(data.draw(values_of(kind)))))
    missing = data.draw(st.sampled_from([part.name for part in parts_of(kind) if not part.open]))
    del written[missing]

    with pytest.raises(ValueError, match=rf"^{missing} is missing$"):
        received(kind, written)


@pytest.mark.parametrize(("name", "reader"), READERS, ids=[name for name, _ in READERS])
@few
@given(st.data())
def test_a_reader_reads_its_messages(name: str, reader: Messages[Any], data: st.DataObject) -> None:
    """The reader of a direction decodes each message of that direction unchanged. A `Refused` message is raised as OtherVersion."""
    message = data.draw(values_of(data.draw(st.sampled_from([*reader.kinds.values()]))))
    head = loads(dumps_any(wire.header(message)))
    if isinstance(message, Refused):
        with pytest.raises(OtherVersion):
            reader.read(head)
    else:
        assert message == reader.read(head)
