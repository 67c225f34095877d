"""The interface between a session and the server or stack under test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_agentbench.backends.telemetry.samples import Sources
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Endpoint, Json

Tell = Callable[[Collection[str]], bool]


class Backend(Protocol):
    """The server or stack that a session tests. All methods may be called from any thread.

    `start` boots it and returns its endpoint. `watch` then blocks in a thread of its own until the backend dies or is stopped. `stop` ends
    it, at any time. Attributes and properties without a default must be set by each backend.

    Only A/B sessions have arms. A backend without arms inherits the methods about them: `leave_out`, `turn`, `sources`, `unused` and
    `follow`.
    """

    name: str
    note: str  # sentence that is printed in every report
    thresholds: Mapping[str, Mapping[str, float]]  # suite -> thresholds that replace the suite's own
    description: Json  # its description in run.json, without secrets
    waits: bool = False  # whether to boot it only if a selected test needs it, because it takes GPUs or minutes
    status: str = ""  # what its boot is waiting for, shown to the user
    stop_note: str = ""  # sentence for the user about problems during `stop`
    models: Sequence[str] = ()  # models that the server lists; empty before the start or if the list was not requested
    in_sequence: bool = False  # whether only one arm is up at a time
    failures: Mapping[str, str] = {}  # arm that did not start or has died -> reason
    load_s: Mapping[str, float] = {}  # arm -> duration of its last start in seconds

    @property
    def identity(self) -> Json:
        """The settings that decide how it answers and how fast. A run is only resumed on a backend with the same identity.

        It is read before the start.
        """
        return {name: value for name, value in self.description.items() if name not in ("name", "note", "prices")}

    @property
    def facts(self) -> Json:
        """Other facts that can differ between runs, read when the session ends. Unknown facts are missing or null.

        `services` (service -> packages, image), `environment` (inherited variables that configure engines), `files` (hashes of the files
        that the YAML names), `server` (version and owner that the server reports), `model` (revision or hash of the weights), `hardware`
        (`gpus`, their names, and `driver`).
        """
        return {}

    def start(self, directory: Path) -> Endpoint:
        """Boots the backend, with logs in `directory`, and returns its endpoint. Raises BackendError if it does not answer."""

    @property
    def processes(self) -> Mapping[str, Child]:
        """Returns the child processes that `watch` restarts if they die, by the names that it gives to `tell`."""
        return {}

    def watch(self, tell: Tell) -> str | None:
        """Blocks until the backend dies or is stopped.

        Args:
            tell: Called with the names of all parts that are being restarted, and with no names when all of them serve again. No rollout
                starts in between. Its return value says whether the session allows another restart.

        Returns:
            What died, with the end of its log, or None if the backend was stopped or cannot be watched.
        """

    def look(self) -> str:
        """Checks whether the backend still answers. It is called after calls failed as if the backend were dead.

        If it does not answer, `watch` reports the missing parts to the session. Returns a sentence for the user if a part has become
        unavailable. Backends whose `processes` are all that can die need no such check.
        """
        return ""

    def boot_again(self, tell: Tell) -> Endpoint | None:
        """Boots the backend again after `watch` has returned. Returns the new endpoint, or None if another boot cannot help.

        Raises BackendError if the boot fails. `tell` is the argument of `watch`. After a boot, the caller calls it with no names.
        """
        del tell
        return None

    def stop(self) -> None:
        """Stops the backend. May be called at any time, and more than once."""

    def metrics(self) -> Sources:
        """Returns the metrics URLs and GPUs of the started backend; the session samples them."""
        return Sources()

    def leave_out(self) -> Sequence[str]:
        """Excludes the arms that cannot run on this machine, before anything boots. Returns a sentence for each.

        Raises MissingError if nothing is left to compare.
        """
        return ()

    def turn(self, arm: str, endpoint: Endpoint) -> tuple[Endpoint, bool]:
        """Starts an arm if it is not up. Returns its endpoint and whether it was started; raises BackendError if it does not start.

        `endpoint` is what `start` returned.
        """
        del arm
        return endpoint, False

    def sources(self, arm: str) -> Sources:
        """Returns the metrics URLs and GPUs of one arm."""
        del arm
        return self.metrics()

    def unused(self, arm: str) -> Collection[str]:
        """Returns the names of the processes that no rollout of an arm needs."""
        del arm
        return ()

    def follow(self, on_lost: Callable[[str, str], None]) -> None:
        """Sets the function that is called with an arm that has died, and the reason."""
        del on_lost
