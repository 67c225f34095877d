"""A backend as the controller holds it: `start` gives an Endpoint that answered, `watch` ends when it dies, `stop` tears it down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_agentbench.backends.telemetry.samples import Sources
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Endpoint, Json

Tell = Callable[[Collection[str]], bool]


class Backend(Protocol):
    """The seam between a session and the stack under test. All methods may be called from a thread.

    A backend that has no arms, the sides of a comparison, keeps what this class answers about them.
    """

    name: str
    note: str  # a sentence for every report
    thresholds: Mapping[str, Mapping[str, float]]  # suite -> thresholds that replace the suite's own
    description: Json  # what run.json says about the stack; no secrets
    waits: bool = False  # whether it is booted only when tests that need it are known: it takes GPUs or minutes
    status: str = ""  # what its boot waits for, for whoever looks on
    stop_note: str = ""  # a sentence for the user about a stop that was not in order
    models: Sequence[str] = ()  # that it lists, once it has started; none where nobody has asked it
    in_sequence: bool = False  # one arm runs before the other
    failures: Mapping[str, str] = {}  # arm that is not there, or is gone -> why
    load_s: Mapping[str, float] = {}  # arm -> seconds that its last start took

    @property
    def identity(self) -> Json:
        """What decides how it answers, and how fast: a run has rollouts of one identity only. Asked before the start."""
        return {name: value for name, value in self.description.items() if name not in ("name", "note", "prices")}

    @property
    def facts(self) -> Json:
        """What else of it can change from run to run, asked when the session ends; what is not known is not there, or null.

        `services` (service -> packages, image), `environment` (variables of engines that they inherit), `files` (hashes of what the
        YAML names), `server` (what it tells of itself), `model` (which weights), `hardware` (`gpus`, their names, and `driver`).
        """
        return {}

    def start(self, directory: Path) -> Endpoint:
        """Boots the stack, logs into `directory`, and returns where it answers; raises BackendError when it does not."""

    @property
    def processes(self) -> Mapping[str, Child]:
        """Those that `watch` starts again when they die, by the names under which it tells of them."""
        return {}

    def watch(self, tell: Tell) -> str | None:
        """Blocks while the stack lives; returns what died, with its log's tail, or None where nothing can be watched.

        `tell` is called with the names of the parts that are away for a while, so that no rollout begins, and with none when all are
        there again. It returns whether a part may be started again, as far as the session is concerned.
        """

    def look(self) -> str:
        """Finds out whether the stack still answers, when calls have failed as those to a dead one do; `watch` tells what is away.

        Returns a sentence for the user if something of it is away that was not before. Backends that list all that can die among their
        `processes` need no look.
        """
        return ""

    def boot_again(self, tell: Tell) -> Endpoint | None:
        """Boots once more what `watch` has returned as dead; returns where it answers, or None if that cannot help.

        Raises BackendError if the boot fails. `tell` is the one of `watch`; the caller tells that nothing is away any more.
        """
        del tell
        return None

    def stop(self) -> None:
        """Tears the stack down; may be called at any moment, also twice."""

    def metrics(self) -> Sources:
        """Where the stack, once it has started, tells its metrics, and which GPUs it has; what is there is sampled."""
        return Sources()

    def leave_out(self) -> Sequence[str]:
        """Before anything boots: a sentence for each arm that cannot run on this machine, and is out of the session.

        Raises MissingError where no comparison is left.
        """
        return ()

    def turn(self, arm: str, endpoint: Endpoint) -> tuple[Endpoint, bool]:
        """Where an arm answers, and whether it was started for this; raises BackendError with why it is not there.

        `endpoint` is what `start` returned.
        """
        del arm
        return endpoint, False

    def sources(self, arm: str) -> Sources:
        """What can be sampled of one arm."""
        del arm
        return self.metrics()

    def unused(self, arm: str) -> Collection[str]:
        """Processes that no rollout of an arm needs."""
        del arm
        return ()

    def follow(self, on_lost: Callable[[str, str], None]) -> None:
        """From now on `on_lost` is called with an arm that was lost, and why."""
        del on_lost
