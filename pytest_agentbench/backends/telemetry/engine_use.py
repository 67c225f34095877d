"""How the LLM calls of a session were distributed over the engines of a stack, for each arm, and what is odd about it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_agentbench.backends.telemetry.crosscheck import Client, call_disagreements
from pytest_agentbench.backends.telemetry.engine_calls import EngineCalls, calls_of_groups, engine_calls
from pytest_agentbench.backends.telemetry.engine_stats import SampleTally
from pytest_agentbench.records import Attempt, Rollout, arm_of

#: All sessions at one engine is a warning if chance would do that in at most this share of runs.
CHANCE = 0.01


@dataclass(frozen=True)
class EngineUse:
    """The calls of the last session at the engines of a stack and at the tap (a recording proxy), without or in one arm.

    A session is what a router sees as one: the calls of one role in one attempt at a rollout.
    """

    arm: str  # name of the [arm](ab.md); empty if all calls went to one backend
    engines: tuple[EngineCalls, ...]  # calls of each engine, from the counters of its metrics; empty if none has counters
    named: Mapping[str, int]  # engine, as named in the answers -> answered calls; empty if answers name no engine
    # answered calls that the tap sent, with calls of judges that use the backend; with arms, without calls that tests make by hand
    tap_calls: int
    # calls that an engine may have answered: those that failed or were interrupted, and with arms those of tests by hand, for each arm
    uncertain_calls: int
    sessions: int  # sessions with an answered call
    traced: int  # sessions with more than one answered call, whose answers all name their engine
    stayed: int  # those of `traced` whose calls were all answered by one engine
    # second requests of [speculative prefills](hints.md#speculative-prefill) that the answered calls ask for; the engines count them, too
    second_requests: int = 0
    warnings: tuple[str, ...] = ()  # sentences, for example that all sessions went to one engine

    @property
    def at_engines(self) -> int:
        """The calls that the engines answered, with second requests: those of the group (kind and stage) with most. 0 without counters."""
        return max(calls_of_groups(self.engines).values(), default=0)


@dataclass
class TapCalls:
    """The calls that the tap has recorded in a session, without or in one arm."""

    client: Client = field(default_factory=Client)
    sessions: int = 0
    traced: int = 0
    stayed: int = 0
    named: Counter[str] = field(default_factory=Counter)

    def add(self, rollout: Rollout) -> None:
        """Adds the calls of a rollout. Calls of its attempts in earlier sessions do not count."""
        self.client.add(rollout)
        for attempt in rollout.attempts:
            if attempt.session == rollout.session:
                self._add_sessions(attempt, by_hand=rollout.kind != "scenario")

    def _add_sessions(self, attempt: Attempt, *, by_hand: bool) -> None:
        sessions: defaultdict[str, list[str | None]] = defaultdict(list)
        for call in attempt.calls:
            if not call.endpoint and not call.error_kind:
                sessions[call.role].append(call.engine)
        for engines in sessions.values():
            self.named.update(engine for engine in engines if engine is not None)
            if by_hand:  # Calls of a test, or first calls before a block, are not a session of an agent.
                continue
            self.sessions += 1
            if len(engines) > 1 and None not in engines:
                self.traced += 1
                self.stayed += len(set(engines)) == 1


class TapCallsByArm:
    """The calls that the tap has recorded in a session, for each arm with a backend of its own. Without such arms, their name is empty."""

    def __init__(self, arms: Iterable[str] = ()) -> None:
        self.arms = {arm: TapCalls() for arm in arms} or {"": TapCalls()}
        self._elsewhere = Client()

    def add(self, rollout: Rollout) -> None:
        """Adds the calls of a rollout. A test's calls by hand went to the arm that was in use then, which is not known."""
        arm = arm_of(rollout.variant) if "" not in self.arms else ""
        if arm in self.arms:
            self.arms[arm].add(rollout)
        else:
            self._elsewhere.add(rollout)

    def end(self, unrecorded: int | None) -> None:
        """Adds calls without a record to each arm, and those of which the arm is not known. None means that their number is unknown."""
        elsewhere = self._elsewhere
        for each in self.arms.values():
            each.client.add_unrecorded(unrecorded)
            each.client.add_unrecorded(None if elsewhere.unknown else elsewhere.calls + elsewhere.uncertain)


def engine_uses(sums: SampleTally | None, taps: TapCallsByArm) -> tuple[EngineUse, ...]:
    """Returns the use of engines in each arm. `sums` are those over the samples of the stack's metrics, or None if there are none.

    The services of an arm are named ARM.SERVICE.
    """
    by_arm: defaultdict[str, list[EngineCalls]] = defaultdict(list)
    for engine in engine_calls(sums) if sums else ():
        arm = max((arm for arm in taps.arms if engine.service.startswith(f"{arm}.")), key=len, default="")
        by_arm[arm].append(replace(engine, service=engine.service.removeprefix(f"{arm}.") if arm else engine.service))
    return tuple(_use(arm, by_arm[arm], tap) for arm, tap in taps.arms.items())


def _use(arm: str, engines: Sequence[EngineCalls], tap: TapCalls) -> EngineUse:
    client = tap.client
    warnings = (*_only_engines(engines, tap.sessions), *call_disagreements(engines, client))
    counts = tap.sessions, tap.traced, tap.stayed
    return EngineUse(arm, tuple(engines), dict(sorted(tap.named.items())), client.calls, client.uncertain, *counts, client.second, warnings)


def _only_engines(engines: Sequence[EngineCalls], sessions: int) -> Iterator[str]:
    """Yields a sentence for each group of engines of which one has answered all calls, although there were enough sessions for all."""
    groups: defaultdict[tuple[str, bool], list[EngineCalls]] = defaultdict(list)
    for engine in engines:
        groups[engine.group].append(engine)
    for group in groups.values():
        busy = [engine for engine in group if engine.calls]
        if len(group) > 1 and len(busy) == 1 and len(group) ** (1.0 - sessions) <= CHANCE:
            yield (
                f"all {sessions} sessions went to one of {len(group)} engines, {busy[0].name}; check the router's policy, and whether "
                "it gets a session id"
            )
