"""Decides which rollout runs next, and how many run at the same time."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import error_texts
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.blocks import Block
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted, Refusals, RetryPolicy
from pytest_agentbench.rollouts.protocol import Scheduling

RunAttempt = Callable[[RolloutKey], Awaitable[Rollout]]
WriteRecord = Callable[[Rollout], Awaitable[bytes]]

KEPT = 512  # finished rollouts whose journal lines stay in memory; older lines are read from the journal


@dataclass(frozen=True)
class Outcome:
    """The result of a planned rollout for the tests that wait: its status and reason. Only a rollout that ran has a record."""

    status: str
    reason: str = ""
    recorded: bool = False  # whether the journal has a record
    cause: str = ""  # cause of an infra_error that other rollouts share, for example the death of the backend


class BlockSwitch(Protocol):
    """The methods with which the scheduler switches from one block of rollouts to the next (see BlockTransition), if there are blocks."""

    def arrange(self, keys: Sequence[RolloutKey]) -> list[Block]: ...

    async def enter(self, block: Block) -> str:
        """Prepares the arm (the setting under comparison) of a block. Returns why its rollouts cannot run, or an empty string.

        Raises:
            Interrupted: A part of the session died meanwhile.
            InfraError: The block cannot be entered for another reason.
        """

    async def leave(self) -> None: ...


class Scheduler:
    """Runs each planned rollout once, with at most `concurrency` of them at the same time.

    A rollout is waiting (in the queue or in a later block), running, being recorded, or finished. `outcome` waits until it is finished.
    Every planned rollout gets an outcome, whether it ran or not. Nothing runs before `start`.

    - `run` makes one attempt. If that fails, `retries` decides whether there is another one. An attempt that raises Interrupted puts
      its rollout back into the queue.
    - `hold(reason)` prevents new attempts while a process of the session is restarted; `hold("")` ends that.
    - `stop` starts no more rollouts, and the waiting ones get its reason as their outcome; running ones finish. `cancel` also cancels
      running ones, except those that are being recorded. `drop` removes the waiting rollouts of one arm, `give_up` those of a group.
    - `resize` changes the concurrency. If it falls, running rollouts finish, and others begin when fewer are running.
    - If rollouts run in blocks (`block_switch` is set), a block contains one arm, and nothing runs between two blocks.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(self, run: RunAttempt, record: WriteRecord, settings: Scheduling, retries: RetryPolicy) -> None:
        """Takes functions of the pool: `run` makes one attempt, `record` writes a rollout to the journal."""
        self._run, self._record, self.settings, self._retries = run, record, settings, retries
        self.started = False  # whether `start` was called
        self.stored: Mapping[RolloutKey, Outcome] = {}  # outcomes that earlier sessions of this run have recorded
        self.broken = ""  # why no further rollout can run: the backend died, the session was stopped; empty if rollouts can run
        self.broken_status = "infra_error"
        self.stopped = asyncio.Event()  # set together with `broken`
        self.alone: set[RolloutKey] = set()  # rollouts that must run alone
        self._refusals = Refusals()
        self._given_up: dict[str, str] = {}  # group -> why none of its rollouts is attempted any more
        self._dropped: dict[str, str] = {}  # lost arm -> reason
        self.available = asyncio.Event()  # set while all parts of the session are available
        self.available.set()
        self._outcomes: dict[RolloutKey, asyncio.Future[Outcome]] = {}
        self.block_switch: BlockSwitch | None = None  # None: all rollouts are one block
        self._blocks: deque[Block] = deque()
        self._arm: str | None = None  # arm of the current block
        self._concurrency = settings.concurrency  # maximum number of rollouts that run at the same time
        self._block_concurrency = math.inf  # maximum number of rollouts of the current block that run at the same time
        self._switching: asyncio.Task[None] | None = None  # the switch to the next block, during which nothing runs
        self._waiting: deque[RolloutKey] = deque()
        self._running: dict[RolloutKey, asyncio.Task[Outcome | None]] = {}
        self._recording: set[RolloutKey] = set()  # rollouts that have ended and are being written to the journal
        self._bodies: OrderedDict[RolloutKey, bytes] = OrderedDict()

    def plan(self, keys: Sequence[RolloutKey]) -> None:
        """Queues rollouts, the longest first if durations are known and the order need not be kept, otherwise in the given order.

        If nothing can run any more, no rollout is queued, and `outcome` returns the reason.
        """
        if self.broken:
            return
        known = self._outcomes.keys() | self.stored.keys()
        new = [key for key in dict.fromkeys(keys) if key not in known and key.group not in self._given_up]
        for key in new:
            self._outcomes[key] = asyncio.get_running_loop().create_future()
        if self.block_switch is None:
            self._waiting.extend(self._ordered(new))
        else:
            self._blocks.extend(self.block_switch.arrange(new))
        self._fill()

    def start(self) -> None:
        """Begins to run rollouts, because the backend answers."""
        self.started = True
        self._fill()

    def resize(self, concurrency: int) -> None:
        """Changes how many rollouts run at the same time."""
        self._concurrency = concurrency
        self._fill()

    def hold(self, why: str) -> None:
        """Prevents new attempts because of `why`: a process that rollouts need is unavailable. An empty string allows attempts again."""
        if why and not self.broken:
            self.available.clear()
        else:
            self.available.set()
            self._fill()

    def stop(self, reason: str, status: str) -> None:
        """Starts no more rollouts. The waiting ones get this status and reason as their outcome. Running rollouts continue."""
        self.broken, self.broken_status = reason, status
        self.stopped.set()
        self.available.set()
        self._refuse(Outcome(status, reason), {block.arm for block in self._blocks})

    def drop(self, arm: str, reason: str) -> None:
        """Starts no more rollouts of an arm whose backend is lost. The waiting ones get the outcome `infra_error` with this reason."""
        self._dropped[arm] = reason
        self._refuse(Outcome("infra_error", reason), {arm}, waiting=self._arm == arm)

    def give_up(self, group: str, reason: str) -> None:
        """Starts no more rollouts of a group (suite and variant). Waiting and later ones get the outcome `infra_error` with this reason."""
        self._given_up[group] = reason
        keys = [key for key in (*self._waiting, *(key for block in self._blocks for key in block.keys)) if key.group == group]
        self._waiting = deque(key for key in self._waiting if key.group != group)
        rest = [dataclasses.replace(block, keys=tuple(key for key in block.keys if key.group != group)) for block in self._blocks]
        self._blocks = deque(block for block in rest if block.keys)
        for key in keys:
            self._outcomes[key].set_result(Outcome("infra_error", reason))

    def _refuse(self, outcome: Outcome, arms: AbstractSet[str], *, waiting: bool = True) -> None:
        """Gives rollouts this outcome without running them: those in later blocks of these arms, and in the queue if `waiting` is set."""
        keys = [*self._waiting] if waiting else []
        keys += [key for block in self._blocks if block.arm in arms for key in block.keys]
        if waiting:
            self._waiting.clear()
        self._blocks = deque(block for block in self._blocks if block.arm not in arms)
        for key in keys:
            self._outcomes[key].set_result(outcome)

    def cancel(self, reason: str) -> None:
        """Starts no more rollouts and cancels the running ones. Rollouts that are being written to the journal are not cancelled."""
        self.stop(reason, "cancelled")
        if self._switching is not None:
            self._switching.cancel()
        for key, task in self._running.items():
            if key not in self._recording:
                task.cancel()

    async def outcome(self, key: RolloutKey) -> Outcome:
        """Waits until a rollout is finished and returns its outcome. A rollout that was not planned runs next, or in a last block."""
        if key in self.stored:
            return self.stored[key]
        if key not in self._outcomes:
            if self.broken:
                return Outcome(self.broken_status, self.broken)
            if key.group in self._given_up:
                return Outcome("infra_error", self._given_up[key.group])
            self._outcomes[key] = asyncio.get_running_loop().create_future()
            if self.block_switch is None:
                self._waiting.appendleft(key)
            else:
                self._blocks.extend(self.block_switch.arrange([key]))
            self._fill()
        return await asyncio.shield(self._outcomes[key])

    def cause(self, key: RolloutKey, outcome: Outcome) -> str:
        """Returns the cause of a rollout's infra_error if other rollouts have the same cause, otherwise an empty string."""
        return outcome.cause or (self._given_up.get(key.group, "") if outcome.status == "infra_error" else "")

    def is_given_up(self, key: RolloutKey) -> bool:
        """Returns whether no further rollout of this rollout's group will start, or none at all."""
        return bool(self.broken) or key.group in self._given_up

    def is_judgeable(self, key: RolloutKey) -> bool:
        """Returns whether a test can still judge this rollout: it has a record of its own, or may still get one."""
        outcome = self._outcomes.get(key)
        if outcome is None or not outcome.done():
            return outcome is not None or key in self.stored
        return outcome.result().recorded and not self.cause(key, outcome.result())

    async def settled(self) -> bool:
        """Waits until all planned rollouts are finished. Returns whether each has a record and nothing prevents further rollouts."""
        while waiting := [outcome for outcome in self._outcomes.values() if not outcome.done()]:
            await asyncio.wait(waiting)
        return not self.broken and not self._given_up and all(outcome.result().recorded for outcome in self._outcomes.values())

    @property
    def is_waiting(self) -> bool:
        """Whether rollouts can run, and some of them have not ended."""
        return self.started and not self.broken and bool(self._waiting or self._running or self._blocks)

    def body(self, key: RolloutKey) -> bytes | None:
        """Returns the journal line of a finished rollout, or None if it is not in memory."""
        return self._bodies.get(key)

    async def drained(self) -> None:
        """Waits until no rollout runs and no block is being prepared."""
        while running := [*self._running.values(), *filter(None, (self._switching,))]:
            await asyncio.wait(running)

    def _ordered(self, keys: Sequence[RolloutKey]) -> Sequence[RolloutKey]:
        """Returns rollouts in the order in which they run. Those that must run alone come first, because they are known to harm others."""
        ordered = keys if self.settings.keep_order else longest_first(keys, self.settings.durations)
        return sorted(ordered, key=lambda key: key not in self.alone)

    def _fill(self) -> None:
        if self.block_switch is not None and self._is_between_blocks():
            self._switching = asyncio.create_task(self._switch_blocks(self.block_switch))
            self._switching.add_done_callback(self._on_switched)
        while self._may_begin():
            key = self._waiting.popleft()
            self._running[key] = asyncio.create_task(self._finish(key))
            self._running[key].add_done_callback(functools.partial(self._ended, key))

    def _may_begin(self) -> bool:
        """Returns whether the first waiting rollout can start now, beside the running ones."""
        ready = self.started and self._switching is None and self.available.is_set()
        if not ready or not self._waiting or len(self._running) >= min(self._concurrency, self._block_concurrency):
            return False
        return not self._running or self.alone.isdisjoint({self._waiting[0], *self._running})

    def _is_between_blocks(self) -> bool:
        """Returns whether nothing runs or waits, so that the current block can end and the next one begin."""
        idle = self._switching is None and not self._waiting and not self._running
        return self.started and idle and (bool(self._blocks) or self._arm is not None)

    async def _switch_blocks(self, switch: BlockSwitch) -> None:
        await self.available.wait()
        if self._arm is not None:
            self._arm = None
            await switch.leave()
        if not self._blocks:
            return
        block = self._blocks.popleft()
        self._waiting.extend(self._ordered(block.keys))  # Queue them before waiting, so that `stop` can resolve them.
        if why := await self._enter(switch, block):
            self._refuse(Outcome("infra_error", why), set())
        else:
            self._arm, self._block_concurrency = block.arm, block.concurrency

    async def _enter(self, switch: BlockSwitch, block: Block) -> str:
        """Prepares a block, again if the death of a process interrupted that. Returns an empty string, or why its rollouts cannot run."""
        while True:
            await self._until_available()
            if self.broken:
                return self.broken
            try:
                return await switch.enter(block)
            except Interrupted:
                if self.broken:
                    raise

    def _on_switched(self, task: asyncio.Task[None]) -> None:
        self._switching = None
        if not task.cancelled() and (error := task.exception()):
            why = str(error) if isinstance(error, InfraError) else f"the pool failed between blocks: {error_texts.cause(error)}"
            self._refuse(Outcome("infra_error", why), set())
        self._fill()

    async def _finish(self, key: RolloutKey) -> Outcome | None:
        """Runs a rollout and records it. Returns its outcome, or None if the rollout was interrupted and has to run again."""
        try:
            rollout = await self._attempts(key)
            if rollout is None:
                return None
            self._recording.add(key)
            self._note_refusal(rollout)
            self._keep(key, await self._record(rollout))
        except InfraError as error:
            return Outcome("infra_error", f"the record could not be written: {error}")
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # A bug in the pool (`run_rollout` handles agent errors). Report it to the waiting test.
            return Outcome("infra_error", f"the pool failed on this rollout: {error_texts.cause(error)}")
        cause = self.broken if rollout.status == self.broken_status == "infra_error" else ""
        if rollout.status == "infra_error":
            cause = cause or self._dropped.get(self._arm or "", "")
        return Outcome(rollout.status, rollout.reason, recorded=True, cause=cause)

    def _note_refusal(self, rollout: Rollout) -> None:
        group = rollout.key.group
        if group in self._given_up:
            return
        planned = (key for key in self._outcomes if key.group == group)
        running = (key for key in self._running if key.group == group and key not in self._recording)
        if why := self._refusals.after(rollout, planned, running):
            self.give_up(group, why)

    def _ended(self, key: RolloutKey, task: asyncio.Task[Outcome | None]) -> None:
        """Sets the outcome of a rollout whose task has ended, or queues the rollout again.

        This is a callback of the task, because a task that is cancelled before its first step runs no code.
        """
        del self._running[key]
        self._recording.discard(key)
        outcome = Outcome("cancelled", self.broken or "the session ended") if task.cancelled() else task.result()
        if outcome is None and not self.broken and key.group not in self._given_up:
            self._waiting.appendleft(key)
        else:
            self._retries.forget(key)
            why = self.broken or self._given_up.get(key.group, "")
            self._outcomes[key].set_result(outcome or Outcome(self.broken_status, why))
        self._fill()

    async def _attempts(self, key: RolloutKey) -> Rollout | None:
        """Makes attempts until one is not repeated, and returns its record, which contains the earlier attempts.

        Returns None if an attempt was interrupted, so that the rollout has to be queued again, or if no attempt may begin any more.
        """
        while True:
            if not self.available.is_set():  # A part became unavailable after this task was created or resumed.
                await self._until_available()
                if self.is_given_up(key):
                    return None
            try:
                rollout, is_interrupted = await self._run(key), False
            except Interrupted as interruption:
                rollout, is_interrupted = interruption.rollout, not self.broken
            rollout = self._retries.numbered(rollout)
            if is_interrupted:
                self._retries.keep(key, rollout.attempts[-1], interrupted=True)
                await self._until_available()
                return rollout if self._is_over() else None
            pause = self._retries.pause_after(rollout)
            if pause is None:
                return rollout
            if not self.broken:
                await asyncio.sleep(pause)
                await self._until_available()
            if self._is_over():
                return rollout
            self._retries.keep(key, rollout.attempts[-1], interrupted=False)

    async def _until_available(self) -> None:
        """Waits until no part of the session is unavailable. `Event.wait` alone also returns if a part becomes unavailable right after."""
        while not self.available.is_set():
            await self.available.wait()

    def _is_over(self) -> bool:
        """Returns whether no further attempt begins in the current block: no rollout may start any more, or the block's arm is lost."""
        return bool(self.broken) or self._arm in self._dropped

    def _keep(self, key: RolloutKey, body: bytes) -> None:
        self._bodies[key] = body
        if len(self._bodies) > KEPT:
            self._bodies.popitem(last=False)


def longest_first(keys: Sequence[RolloutKey], durations: Mapping[str, float]) -> list[RolloutKey]:
    """Sorts keys by decreasing duration in seconds, unknown durations first. Keeps the order if no duration is known."""
    return sorted(keys, key=lambda key: -durations.get(str(key), float("inf"))) if durations else [*keys]
