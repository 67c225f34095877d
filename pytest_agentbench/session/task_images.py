"""The images of the tasks that a session has planned, made before anything is measured; and the end of its sandboxes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.containers import client, end_run, infra, unenforced
from pytest_agentbench.sandbox.images import image_of, make_filter_image, make_image
from pytest_agentbench.sandbox.private_addresses import needs_filter
from pytest_agentbench.suites.task import DOCKER, Task

AT_ONCE = 2  # images that are built


class TaskImages:
    """Of one session."""

    def __init__(self, tasks: Mapping[tuple[str, str], Task], run: str, say: Callable[[str], None]) -> None:
        """`tasks` by suite and scenario; `run` is what their sandboxes are labelled with; `say` is given sentences for the user."""
        self.tasks, self._run, self._say = tasks, run, say
        self.planned: Sequence[RolloutKey] = ()
        self.unbuilt: dict[str, str] = {}  # image -> why it could not be made
        self.status = ""  # what is being made; empty where nothing is

    def make(self) -> None:
        """Returns when each planned task of a sandbox of ours has an image, or `unbuilt` says why it has none."""
        tasks = [self.tasks[place] for key in self.planned if (place := (key.suite, key.scenario)) in self.tasks]
        images = {image_of(task): task for task in tasks if task.sandbox == DOCKER and not (task.unsupported or task.broken)}
        began = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE, "agentbench-image") as threads:
            made = sum(threads.map(self._make, images.values()))
        self.status = ""
        if made:
            self._say(f"made the image{'s' * (made > 1)} of {made} task{'s' * (made > 1)} in {time.monotonic() - began:.0f} s")
        built = [task for name, task in images.items() if name not in self.unbuilt]
        if any(needs_filter(task) for task in built):
            self._make_filter()
        self._warn(built)

    def _make_filter(self) -> None:
        try:
            make_filter_image(self._show)
        except InfraError as error:
            self._say(str(error))  # Each sandbox that needs it fails with the same reason.
        self.status = ""

    def _warn(self, tasks: Sequence[Task]) -> None:
        """Names the limits that the engine does not keep, before any task is carried out."""
        if not tasks:
            return
        with suppress(InfraError), closing(client()) as engine, infra():  # If the engine fails, the sandboxes say so.
            for sentence in unenforced(engine, engine.images.get(image_of(tasks[0])), tasks[0]):
                self._say(sentence)

    def _make(self, task: Task) -> bool:
        """Whether there was none, and is one now."""
        try:
            return make_image(task, self._show)
        except InfraError as error:
            self.unbuilt[image_of(task)] = str(error)
            return False

    def _show(self, line: str) -> None:
        self.status = line

    def end(self) -> None:
        """Removes the sandboxes that a pool which was killed, or gave up waiting, has left."""
        if self.tasks:
            with suppress(InfraError):  # they end by themselves, and the next session says which are there
                end_run(self._run)
