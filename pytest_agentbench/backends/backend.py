"""`Backend`, the interface through which a session starts, watches and stops the server or stack under test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytest_agentbench.backends.telemetry.samples import Sources
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Endpoint, Json

Tell = Callable[[Collection[str]], bool]


class Backend(Protocol):
    """The server or stack that a session tests. All methods may be called from any thread.

    The session calls `start`, which boots the backend and returns its endpoint. Another thread then calls `watch`, which blocks until the
    backend dies or is stopped. `stop` ends the backend at any time. Subclasses must set the attributes and properties without a default.

    Only the backend of an A/B session has arms (settings under comparison). Other backends inherit the methods about arms: `leave_out`,
    `turn`, `sources`, `unused` and `follow`.
    """

    name: str
    note: str  # sentence that is printed in every report
    thresholds: Mapping[str, Mapping[str, float]]  # suite -> thresholds that replace the suite's own
    description: Json  # its description in run.json, without secrets
    nodes: Mapping[str, Mapping[str, Any]] = {}  # launcher of node workers -> its settings in the YAML
    run_metrics: str = ""  # host and port at which the session serves the metrics of its run; empty if it does not. Set before `start`
    waits: bool = False  # whether to boot it only if a selected test needs it, because it takes GPUs or minutes
    status: str = ""  # what its boot is waiting for, shown to the user
    stop_note: str = ""  # sentence for the user about problems during `stop`
    models: Sequence[str] = ()  # models that the server lists; empty before the start or if the list was not requested
    in_sequence: bool = False  # whether only one arm is up at a time
    failures: Mapping[str, str] = {}  # arm that did not start or has died -> reason
    played: Json | None = None  # how a recording was used; set by `stop`; None for other backends
    load_s: Mapping[str, float] = {}  # arm -> duration of its last start in seconds

    @property
    def identity(self) -> Json:
        """The settings that decide how the backend answers and how fast. They are known before the start.

        A run is only resumed on a backend with the same identity.
        """
        return {name: value for name, value in self.description.items() if name not in ("name", "note", "prices")}

    @property
    def facts(self) -> Json:
        """Facts about the backend that can differ between runs with the same identity. They are read when the session ends.

        Unknown facts are missing or null. The keys are:

        - `services`: service -> packages of its environment, or digest of its image
        - `environment`: inherited variables that configure engines
        - `files`: hashes of the files that the YAML names
        - `server`: version and owner that the server reports
        - `model`: revision or hash of the weights
        - `hardware`: names of the GPUs, and version of the driver
        """
        return {}

    def start(self, directory: Path) -> Endpoint:
        """Boots the backend, with logs in `directory`, and returns its endpoint. Raises BackendError if it does not answer."""

    @property
    def processes(self) -> Mapping[str, Child]:
        """The child processes that `watch` restarts if they die. The keys are the names that `watch` passes to `tell`."""
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
        """Checks whether the backend still answers. The session calls this after calls have failed as if the backend were dead.

        If the backend does not answer, `watch` tells the session which parts are unavailable. Returns a sentence for the user if a part
        has become unavailable, else an empty string. Backends that consist only of their `processes` need no such check.
        """
        return ""

    def boot_again(self, tell: Tell) -> Endpoint | None:
        """Boots the backend again after `watch` has returned. Returns the new endpoint, or None if another boot cannot help.

        Raises BackendError if the boot fails. `tell` is the argument of `watch`. After a boot, the caller calls `tell` with no names.
        """
        del tell
        return None

    def stop(self) -> None:
        """Stops the backend. May be called at any time, and more than once."""

    def metrics(self) -> Sources:
        """Returns the metrics URLs and GPUs of the started backend. The session samples them."""
        return Sources()

    def leave_out(self) -> Sequence[str]:
        """Excludes the arms that cannot run on this machine, before anything boots. Returns a sentence for each.

        Raises MissingError if nothing is left to compare.
        """
        return ()

    def turn(self, arm: str, endpoint: Endpoint) -> tuple[Endpoint, bool]:
        """Makes an arm ready for its next block of rollouts. Returns its endpoint, and whether it was started for that.

        `endpoint` is what `start` returned; backends without arms return it. Raises BackendError if the arm does not start.
        """
        del arm
        return endpoint, False

    def sources(self, arm: str) -> Sources:
        """Returns the metrics URLs and GPUs of one arm."""
        del arm
        return self.metrics()

    def missing_workers(self, arm: str) -> str:
        """Counts the workers of an arm again, between two blocks of rollouts. Returns a sentence if some are missing, else an empty string.

        A router may lose workers that still run. Only backends with `ready: {workers: ...}` are counted. Called for arms that are up.
        """
        del arm
        return ""

    def unused(self, arm: str) -> Collection[str]:
        """Returns the names of the processes that rollouts of `arm` do not need: none, except in an A/B session."""
        del arm
        return ()

    def follow(self, on_lost: Callable[[str, str], object]) -> None:
        """Sets the function that is called when an arm has died. Its arguments are the name of the arm and the reason."""
        del on_lost
