"""Preparation of rollouts: builds the images of tasks before a session measures, and prepares the backend for each block.

A block is a series of rollouts of one arm (a setting under comparison).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace

from pytest_agentbench.backends import cache_state
from pytest_agentbench.backends.backend import Backend
from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import prefix_cache
from pytest_agentbench.errors import AgentbenchError, BackendError, InfraError
from pytest_agentbench.records import Endpoint, RolloutKey
from pytest_agentbench.rollouts.protocol import NoTurn, Turn
from pytest_agentbench.runs.results import ArmFacts
from pytest_agentbench.sandbox.containers import client, end_run, image_of, infra, make_filter_image, make_image, unenforced
from pytest_agentbench.sandbox.docker_sandbox import needs_filter
from pytest_agentbench.suites.arms import COLD
from pytest_agentbench.suites.suite import DOCKER, Task

PARALLEL_BUILDS = 2  # images built at the same time


class TaskImages:
    """Builds the container images of a session's tasks, and removes sandboxes that are left at the end."""

    def __init__(self, tasks: Mapping[tuple[str, str], Task], run: str, say: Callable[[str], None]) -> None:
        """`tasks`: (suite, scenario id) -> task. `run` is the name that labels the run's containers. `say` shows a sentence to the user."""
        self.tasks, self._run, self._say = tasks, run, say
        self.planned: Sequence[RolloutKey] = ()
        self.unbuilt: dict[str, str] = {}  # image -> why it could not be built
        self.status = ""  # Current build step; empty if nothing is being built

    def make(self) -> None:
        """Builds the missing images of all planned tasks with a Docker sandbox. Images that fail are in `unbuilt`, with the reason."""
        tasks = [self.tasks[place] for key in self.planned if (place := (key.suite, key.scenario)) in self.tasks]
        images = {image_of(task): task for task in tasks if task.sandbox == DOCKER and not (task.unsupported or task.broken)}
        began = time.monotonic()
        with ThreadPoolExecutor(PARALLEL_BUILDS, "agentbench-image") as threads:
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

    def end(self) -> None:
        """Removes sandboxes that the pool left because it was killed or stopped waiting."""
        if self.tasks:
            with suppress(InfraError):  # Sandboxes end by themselves, and the next session names those that are left.
                end_run(self._run)


class ArmSwitcher:
    """Prepares the backend for each block: rollouts of one arm (a setting under comparison) in a row. Records its cache hits and duration.

    The pool (the process that runs rollouts) announces each block, one at a time. `begin` switches to the block's arm and empties the
    cache if the policy is `cold`. `measure` starts the measurement and `close` ends it.
    """

    def __init__(self, backend: Backend, policy: str) -> None:
        self.backend, self.policy = backend, policy
        self.blocks: list[CacheBlock] = []
        self._before: cache_state.Counters = {}
        self._is_open = False
        self._began = 0.0  # seconds, time.monotonic()
        self._salted: dict[str, str] = {}  # arm whose cache cannot be reset -> reason

    def begin(self, endpoint: Endpoint, arm: str, rollouts: int) -> tuple[Turn | NoTurn, bool]:
        """Prepares an arm for its next block of rollouts. Returns the answer for the pool, and whether the arm was started for this block.

        The answer has the arm's endpoint and salt (unique text in prompts, against cache hits), or the reason why the arm cannot run.
        `endpoint` is the session's, which all arms share if there is only one backend.
        """
        self.close()
        try:
            endpoint, swapped = self.backend.turn(arm, endpoint)
        except AgentbenchError as error:
            return NoTurn(str(error)), False
        block = CacheBlock(arm, rollouts)
        if self.policy == COLD:
            block = self._with_empty_cache(endpoint, block)
        if self.blocks and self.blocks[-1].seconds is None:
            self.blocks.pop()  # A tap died before the block could be measured.
        self.blocks.append(block)
        return Turn(endpoint, block.salt), swapped

    def measure(self, primed: int | None) -> None:
        """Starts to measure cache hits and duration of the block.

        `primed` is the number of rollouts whose first call was made before the block, to fill the cache; None if the policy differs.
        """
        self.blocks[-1] = replace(self.blocks[-1], primed=primed)
        self._before, self._is_open, self._began = self._counters(), True, time.monotonic()

    def close(self) -> None:
        """Ends the measurement of the block. Does nothing if none is being measured."""
        if self._is_open:
            self._is_open = False
            seconds = time.monotonic() - self._began
            hits = prefix_cache(cache_state.moved(self._before, self._counters()))
            self.blocks[-1] = replace(self.blocks[-1], seconds=seconds, prefix_cache=hits)

    @property
    def why_salted(self) -> dict[str, str]:
        """Arm whose prompts get a salt (a unique text against cache hits), because its cache could not be reset -> reason."""
        return dict(self._salted)

    def facts(self, failure: str) -> ArmFacts:
        """Returns which arms failed, and how long each took to start. `failure` is the reason why the session failed, if it did."""
        backend = self.backend
        return ArmFacts("" if backend.failures else failure, backend.failures, backend.load_s, backend.in_sequence)

    def _with_empty_cache(self, endpoint: Endpoint, block: CacheBlock) -> CacheBlock:
        """Empties the cache of a block's arm. Returns the block's record.

        If the cache cannot be emptied, the record has a salt: a unique text for the block's prompts, so that none of them is in the cache.
        """
        arm = block.arm
        if arm not in self._salted:
            try:
                done = cache_state.reset(endpoint, self.backend.sources(arm))
            except BackendError as error:
                done = cache_state.Reset((), str(error))
            block = replace(block, reset=done.done)
            if done.why_not:
                self._salted[arm] = done.why_not
        return replace(block, salt=f"[benchmark run {secrets.token_hex(6)}]") if arm in self._salted else block

    def _counters(self) -> cache_state.Counters:
        return cache_state.counters(self.backend.sources(self.blocks[-1].arm).targets)
