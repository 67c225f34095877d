"""Builds the images of tasks on the machine where their sandboxes will run, before any rollout runs there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.containers import client, end_run, image_of, infra, make_filter_image, make_image, unenforced
from pytest_agentbench.sandbox.docker_sandbox import needs_filter
from pytest_agentbench.suites.suite import DOCKER, Task

PARALLEL_BUILDS = 2  # images built at the same time


class ImageBuilder:
    """Builds images of tasks. `make` blocks until they are built; other threads may read the attributes meanwhile."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` shows a sentence to the user."""
        self._say = say
        self.unbuilt: dict[str, str] = {}  # image -> why it could not be built
        self.status = ""  # current build step; empty if nothing is being built

    def make(self, tasks: Sequence[Task]) -> None:
        """Builds the images of these tasks that are missing. Images that fail are in `unbuilt`, with the reason."""
        began = time.monotonic()
        with ThreadPoolExecutor(PARALLEL_BUILDS, "agentbench-image") as threads:
            made = sum(threads.map(self._make, tasks))
        self.status = ""
        if made:
            self._say(f"made the image{'s' * (made > 1)} of {made} task{'s' * (made > 1)} in {time.monotonic() - began:.0f} s")
        built = [task for task in tasks if image_of(task) not in self.unbuilt]
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
        """Warns about limits that the container engine does not enforce, before any task runs."""
        if not tasks:
            return
        with suppress(InfraError), closing(client()) as engine, infra():  # If the engine fails, the sandboxes say so.
            for sentence in unenforced(engine, engine.images.get(image_of(tasks[0])), tasks[0]):
                self._say(sentence)

    def _make(self, task: Task) -> bool:
        """Builds the image of a task if it is missing. Returns whether it was built."""
        try:
            return make_image(task, self._show)
        except InfraError as error:
            self.unbuilt[image_of(task)] = str(error)
            return False

    def _show(self, line: str) -> None:
        self.status = line


class TaskImages(ImageBuilder):
    """The container images that the planned tasks of a session need. Also removes sandboxes that are left at the session's end."""

    def __init__(self, tasks: Mapping[tuple[str, str], Task], run: str, say: Callable[[str], None]) -> None:
        """`tasks`: (suite, scenario id) -> task. `run` is the name that labels the run's containers. `say` shows a sentence to the user."""
        super().__init__(say)
        self.tasks, self._run = tasks, run
        self.planned: Sequence[RolloutKey] = ()

    @property
    def needed(self) -> tuple[Task, ...]:
        """One task for each image that the planned tasks with a Docker sandbox need."""
        tasks = [self.tasks[place] for key in self.planned if (place := (key.suite, key.scenario)) in self.tasks]
        images = {image_of(task): task for task in tasks if task.sandbox == DOCKER and not (task.unsupported or task.broken)}
        return (*images.values(),)

    def end(self) -> None:
        """Removes sandboxes that the pool and node workers of this machine left because they were killed or stopped waiting."""
        if self.tasks:
            with suppress(InfraError):  # Sandboxes end by themselves, and the next session names those that are left.
                end_run(self._run)
