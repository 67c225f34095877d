"""Servers that agentbench did not start: checked when calls fail, waited for, and given up with a reason."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.ports import Reserved
from pytest_agentbench.backends.url import Absence
from pytest_agentbench.records import Endpoint
from tests.engines import engine
from tests.waits import wait_for


def free_port() -> int:
    """Returns a port without a listener that the kernel does not use for outgoing connections."""
    reserved = Reserved()
    port = reserved.take()
    reserved.close()
    return port


class Session:
    """A session that records which parts are reported as unavailable, and how the watch ended."""

    def __init__(self, absence: Absence, endpoint: Endpoint, *, again: bool = True) -> None:
        self.told: list[list[str]] = []
        self.ended: list[str | None] = []
        self._again = again
        self._thread = threading.Thread(target=lambda: self.ended.append(absence.wait(endpoint, self._tell)), daemon=True)
        self._thread.start()
        wait_for(lambda: absence._tell is not None, "the watch")

    def _tell(self, names: Collection[str]) -> bool:
        self.told.append([*names])
        return self._again


def test_a_server_that_answers_again(tmp_path: Path) -> None:
    """A server that answers is available. If it does not answer, that is reported once, and again when it answers."""
    port = free_port()
    endpoint, absence = Endpoint(f"http://127.0.0.1:{port}/v1", "m"), Absence(60.0)
    session = Session(absence, endpoint)
    with engine(tmp_path, model="m", port=port):
        assert "" == absence.look(endpoint)
    assert [] == session.told

    said = absence.look(endpoint)

    assert said.startswith(f"GET http://127.0.0.1:{port}/v1/models got no answer")
    assert said.endswith("; no rollout begins until it answers, for 60 s at most")
    assert [["server"]] == session.told
    assert "" == absence.look(endpoint)
    with engine(tmp_path, model="m", port=port):
        wait_for(lambda: session.told == [["server"], []], "its return")
        assert "" == absence.look(endpoint)
    absence.stop()
    wait_for(lambda: session.ended == [None], "the end of the watch")


@pytest.mark.parametrize(("again", "why"), [(True, "for 0.5 s GET URL/models got no answer"), (False, "repeatedly, with no rollout ")])
def test_a_server_that_does_not_answer_again(again: bool, why: str) -> None:
    """The server is given up after `patience` seconds, or at once if the session allows no further wait."""
    endpoint, absence = Endpoint(f"http://127.0.0.1:{free_port()}/v1", "m"), Absence(0.5)
    session = Session(absence, endpoint, again=again)

    absence.look(endpoint)

    wait_for(lambda: session.ended, "the end of the watch")
    assert [["server"]] == session.told
    assert str(session.ended[0]).startswith(why.replace("URL", endpoint.url))


def test_before_the_session_watches() -> None:
    """Before the session watches, nothing is reported and no request is sent."""
    assert "" == Absence(None).look(Endpoint(f"http://127.0.0.1:{free_port()}/v1", "m"))
