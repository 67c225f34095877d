"""A server that nobody can watch: whether it answers is asked when calls have failed as those to a dead one do."""

from __future__ import annotations

import threading
import time

from pytest_agentbench.backends.backend import Tell
from pytest_agentbench.backends.proof.api import Api
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint

PATIENCE = 10.0  # seconds that a server may be away, where no budget of a connection says otherwise
PAUSE = 0.25  # seconds between two questions

SERVER = "server"


class Absence:
    """Finds out that a server is away, and waits until it is there again.

    `look` and `wait` run in different threads: attempts that fail ask for a look, and the thread that watches the backend waits.
    """

    def __init__(self, patience: float | None) -> None:
        """`patience` is in seconds; None stands for PATIENCE."""
        self.patience = PATIENCE if patience is None else patience
        self._tell: Tell | None = None  # known when the session watches
        self._looking = threading.Lock()
        self._changed = threading.Event()  # the server is away, or the session ends
        self._again = True  # whether the session lets it be away once more
        self._stopped = False

    def look(self, endpoint: Endpoint) -> str:
        """Asks the server once, unless it is known to be away; returns a sentence if it has just gone away, else an empty string.

        Before it returns, the session is told, so that no attempt begins.
        """
        with self._looking:
            if self._tell is None or self._changed.is_set() or not (why := self._unanswered(endpoint)):
                return ""
            self._again = self._tell([SERVER])
            self._changed.set()
        return f"{why}; no rollout begins until it answers, for {self.patience:g} s at most"

    def wait(self, endpoint: Endpoint, tell: Tell) -> str | None:
        """Blocks; returns why the server is given up, or None when the session ends."""
        self._tell = tell
        while not self._stopped:
            self._changed.wait()
            why = self._why_gone(endpoint)
            if why and not self._stopped:
                return why
            with self._looking:
                self._changed.clear()
                tell([])
        return None

    def stop(self) -> None:
        """Ends `wait`. May be called at any moment, also twice."""
        self._stopped = True
        self._changed.set()

    def _why_gone(self, endpoint: Endpoint) -> str:
        """Returns why a server that is away is not waited for any longer; empty once it answers, whatever it says."""
        late = time.monotonic() + self.patience
        while not self._stopped and (why := self._unanswered(endpoint)):
            if not self._again:
                return f"again and again, with no rollout that finished in between, {why}"
            if time.monotonic() >= late:
                return f"for {self.patience:g} s {why}"
            time.sleep(PAUSE)
        return ""

    def _unanswered(self, endpoint: Endpoint) -> str:
        try:
            Api(endpoint).get("/models", max(self.patience, 1.0))
        except BackendError as error:
            return str(error)
        return ""
