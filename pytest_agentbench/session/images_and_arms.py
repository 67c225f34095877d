"""What a session makes ready: the images of its tasks before anything is measured, and the arm and its cache between two blocks of
rollouts.
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

PARALLEL_BUILDS = 2  # images that are built


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


class ArmSwitcher:
    """The blocks of one session, as its controller sees them. One block at a time, told by the pool."""

    def __init__(self, backend: Backend, policy: str) -> None:
        self.backend, self.policy = backend, policy
        self.blocks: list[CacheBlock] = []
        self._before: cache_state.Counters = {}
        self._is_open = False
        self._began = 0.0  # seconds, time.monotonic()
        self._salted: dict[str, str] = {}  # arm whose cache cannot be reset -> why

    def begin(self, endpoint: Endpoint, arm: str, rollouts: int) -> tuple[Turn | NoTurn, bool]:
        """(what the pool is told, whether the arm was started for this). `endpoint` is the session's, for a session of one backend."""
        self.close()
        try:
            endpoint, swapped = self.backend.turn(arm, endpoint)
        except AgentbenchError as error:
            return NoTurn(str(error)), False
        block = CacheBlock(arm, rollouts)
        if self.policy == COLD:
            block = self._with_empty_cache(endpoint, block)
        if self.blocks and self.blocks[-1].seconds is None:
            self.blocks.pop()  # it was never measured: a tap died before it was pointed at the arm
        self.blocks.append(block)
        return Turn(endpoint, block.salt), swapped

    def measure(self, primed: int | None) -> None:
        """The rollouts of the block begin; so many of them had their first call made before."""
        self.blocks[-1] = replace(self.blocks[-1], primed=primed)
        self._before, self._is_open, self._began = self._counters(), True, time.monotonic()

    def close(self) -> None:
        """The rollouts of the block have ended. May be called without one, and twice."""
        if self._is_open:
            self._is_open = False
            seconds = time.monotonic() - self._began
            hits = prefix_cache(cache_state.moved(self._before, self._counters()))
            self.blocks[-1] = replace(self.blocks[-1], seconds=seconds, prefix_cache=hits)

    @property
    def why_salted(self) -> dict[str, str]:
        """Arm -> why its cache could not be reset."""
        return dict(self._salted)

    def facts(self, failure: str) -> ArmFacts:
        """`failure` is the session's."""
        backend = self.backend
        return ArmFacts("" if backend.failures else failure, backend.failures, backend.load_s, backend.in_sequence)

    def _with_empty_cache(self, endpoint: Endpoint, block: CacheBlock) -> CacheBlock:
        """A block with an empty cache: by a reset, or else by a salt that no other block has."""
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
