"""Which rollout runs next, and how many at the same time."""

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

KEPT = 512  # bodies of finished rollouts kept in memory; older ones are read again from the journal


@dataclass(frozen=True)
class Outcome:
    """How a job ended. Only one that ran has a record."""

    status: str
    reason: str = ""
    recorded: bool = False
    cause: str = ""  # of an infra_error that is no rollout's own: why nothing can run any more


class BlockSwitch(Protocol):
    """What happens between two blocks of rollouts, where they run in blocks."""

    def arrange(self, keys: Sequence[RolloutKey]) -> list[Block]: ...

    async def enter(self, block: Block) -> str:
        """Returns why its rollouts cannot run. Raises Interrupted if a part of the session died meanwhile, and may raise InfraError."""

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
    - If rollouts run in blocks (`turns` is set), a block contains one arm, and nothing runs between two blocks.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(self, run: RunAttempt, record: WriteRecord, settings: Scheduling, retries: RetryPolicy) -> None:
        """`run` makes one attempt, and may raise Interrupted. `record` journals a rollout; it may raise InfraError."""
        self._run, self._record, self.settings, self._retries = run, record, settings, retries
        self.started = False  # rollouts run from `start` on
        self.stored: Mapping[RolloutKey, Outcome] = {}  # what earlier sessions of this run have recorded
        self.broken = ""  # why nothing can run any more: the backend died, the session was stopped
        self.broken_status = "infra_error"
        self.stopped = asyncio.Event()  # `broken` says why
        self.alone: set[RolloutKey] = set()  # rollouts beside which nothing else runs
        self._refusals = Refusals()
        self._given_up: dict[str, str] = {}  # group -> why none of its rollouts is tried any more
        self._dropped: dict[str, str] = {}  # arm that is gone -> why
        self.available = asyncio.Event()  # no part of the backend is away
        self.available.set()
        self._outcomes: dict[RolloutKey, asyncio.Future[Outcome]] = {}
        self.block_switch: BlockSwitch | None = None  # None: all rollouts are one block
        self._blocks: deque[Block] = deque()
        self._arm: str | None = None  # whose block is under way
        self._concurrency = settings.concurrency  # rollouts that run at the same time, at most
        self._block_concurrency = math.inf  # the same for the block that is under way
        self._switching: asyncio.Task[None] | None = None  # the way to the next block, while nothing runs
        self._waiting: deque[RolloutKey] = deque()
        self._running: dict[RolloutKey, asyncio.Task[Outcome | None]] = {}
        self._recording: set[RolloutKey] = set()  # those that ended and are on their way to the journal
        self._bodies: OrderedDict[RolloutKey, bytes] = OrderedDict()

    def plan(self, keys: Sequence[RolloutKey]) -> None:
        """Takes the session's rollouts: longest first where durations are known, else (and where order is kept) as given.

        When nothing can run any more nothing is taken, and `outcome` says why.
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
        """The backend answers: go."""
        self.started = True
        self._fill()

    def resize(self, concurrency: int) -> None:
        """Changes how many rollouts run at the same time."""
        self._concurrency = concurrency
        self._fill()

    def hold(self, why: str) -> None:
        """Prevents new attempts because a part of the session is away; an empty text ends that."""
        if why and not self.broken:
            self.available.clear()
        else:
            self.available.set()
            self._fill()

    def stop(self, reason: str, status: str) -> None:
        """Nothing more is started; those that wait for it are told at once. What runs goes on."""
        self.broken, self.broken_status = reason, status
        self.stopped.set()
        self.available.set()
        self._refuse(Outcome(status, reason), {block.arm for block in self._blocks})

    def drop(self, arm: str, reason: str) -> None:
        """An arm is gone: none of its rollouts is started any more, and those that wait for them are told."""
        self._dropped[arm] = reason
        self._refuse(Outcome("infra_error", reason), {arm}, waiting=self._arm == arm)

    def give_up(self, group: str, reason: str) -> None:
        """Refuses the waiting rollouts of a suite and variant, and all later ones, with a reason."""
        self._given_up[group] = reason
        keys = [key for key in (*self._waiting, *(key for block in self._blocks for key in block.keys)) if key.group == group]
        self._waiting = deque(key for key in self._waiting if key.group != group)
        rest = [dataclasses.replace(block, keys=tuple(key for key in block.keys if key.group != group)) for block in self._blocks]
        self._blocks = deque(block for block in rest if block.keys)
        for key in keys:
            self._outcomes[key].set_result(Outcome("infra_error", reason))

    def _refuse(self, outcome: Outcome, arms: AbstractSet[str], *, waiting: bool = True) -> None:
        """Of what is about to run, and of the blocks of some arms."""
        keys = [*self._waiting] if waiting else []
        keys += [key for block in self._blocks if block.arm in arms for key in block.keys]
        if waiting:
            self._waiting.clear()
        self._blocks = deque(block for block in self._blocks if block.arm not in arms)
        for key in keys:
            self._outcomes[key].set_result(outcome)

    def cancel(self, reason: str) -> None:
        """Stops, and ends what runs as well. What has ended still gets into the journal."""
        self.stop(reason, "cancelled")
        if self._switching is not None:
            self._switching.cancel()
        for key, task in self._running.items():
            if key not in self._recording:
                task.cancel()

    async def outcome(self, key: RolloutKey) -> Outcome:
        """How a rollout ended; starts it, ahead of all others, when it was in no plan."""
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
        """Why a rollout is an infra_error, where it is not the only one for that reason."""
        return outcome.cause or (self._given_up.get(key.group, "") if outcome.status == "infra_error" else "")

    def is_given_up(self, key: RolloutKey) -> bool:
        """Whether nothing runs any more, or nothing of this rollout's group."""
        return bool(self.broken) or key.group in self._given_up

    def is_judgeable(self, key: RolloutKey) -> bool:
        """Whether there is more to say of a rollout than why nothing can run any more, or may yet be."""
        outcome = self._outcomes.get(key)
        if outcome is None or not outcome.done():
            return outcome is not None or key in self.stored
        return outcome.result().recorded and not self.cause(key, outcome.result())

    async def settled(self) -> bool:
        """Returns when all that was planned has ended: whether each has a record, and more could run."""
        while waiting := [outcome for outcome in self._outcomes.values() if not outcome.done()]:
            await asyncio.wait(waiting)
        return not self.broken and not self._given_up and all(outcome.result().recorded for outcome in self._outcomes.values())

    def body(self, key: RolloutKey) -> bytes | None:
        """The recorded line of a finished rollout while it is in memory."""
        return self._bodies.get(key)

    async def drained(self) -> None:
        """Returns when nothing runs."""
        while running := [*self._running.values(), *filter(None, (self._switching,))]:
            await asyncio.wait(running)

    def _ordered(self, keys: Sequence[RolloutKey]) -> Sequence[RolloutKey]:
        """Those that run alone come first: they are known to harm others."""
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
        """Whether the next rollout can run beside those that do."""
        ready = self.started and self._switching is None and self.available.is_set()
        if not ready or not self._waiting or len(self._running) >= min(self._concurrency, self._block_concurrency):
            return False
        return not self._running or self.alone.isdisjoint({self._waiting[0], *self._running})

    def _is_between_blocks(self) -> bool:
        """Whether a block has ended, or there is one to begin."""
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
        self._waiting.extend(self._ordered(block.keys))  # where `stop` finds them
        if why := await self._enter(switch, block):
            self._refuse(Outcome("infra_error", why), set())
        else:
            self._arm, self._block_concurrency = block.arm, block.concurrency

    async def _enter(self, switch: BlockSwitch, block: Block) -> str:
        """Returns why a block's rollouts cannot run. A block whose beginning was interrupted is entered again."""
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
        """None of a rollout that was interrupted, and is to run again."""
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
        except BaseException as error:  # ours, not the agent's: `run_rollout` keeps those. It must reach the test that waits
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
        """A callback, because a task that is cancelled before its first step runs no line of its own."""
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
        """Returns the record of the last attempt, which contains the earlier ones; None if it was interrupted, or must not begin."""
        while True:
            if not self.available.is_set():  # A part has gone away since this task was created, or since it was woken.
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
        """Waits until no part of the session is away. `Event.wait` alone also ends if another part has gone away meanwhile."""
        while not self.available.is_set():
            await self.available.wait()

    def _is_over(self) -> bool:
        """Whether no rollout of the block that is under way is tried again: nothing runs any more, or its arm is gone."""
        return bool(self.broken) or self._arm in self._dropped

    def _keep(self, key: RolloutKey, body: bytes) -> None:
        self._bodies[key] = body
        if len(self._bodies) > KEPT:
            self._bodies.popitem(last=False)


def longest_first(keys: Sequence[RolloutKey], durations: Mapping[str, float]) -> list[RolloutKey]:
    """Keys by falling duration in seconds, unknown ones first; as given where none is known."""
    return sorted(keys, key=lambda key: -durations.get(str(key), float("inf"))) if durations else [*keys]
