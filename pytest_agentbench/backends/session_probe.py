"""Test sessions at the boot of a stack: does its router keep the calls of a session on one engine?"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_agentbench.backends.probe_rollout import ANSWER, probe_rollout
from pytest_agentbench.backends.telemetry.engine_calls import PREFILL, CallCounts, calls_between, calls_now
from pytest_agentbench.backends.telemetry.samples import Target
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.records.call import engine_name
from pytest_agentbench.tap.routing_hints import worker_in

SESSIONS, CALLS = 6, 3
WORDS = 60  # random words at the beginning of a session, more than a block of a prefix cache
COUNT_PATIENCE = 2.0  # seconds that an engine's counter may be later than its answer
COUNT_POLL = 0.02  # seconds

#: The value of `labels: {sticky: ...}` that refuses a stack whose sessions change engines.
REQUIRED = "required"


@dataclass(frozen=True)
class SessionProbe:
    """Where the calls of test sessions were answered."""

    sessions: int  # number of sessions; each made the same number of calls, one after the other
    stayed: int  # sessions whose calls were all answered by one engine
    unknown: int  # sessions with a call whose engine is not known
    calls: Mapping[str, int]  # engine -> calls that it answered; engines without a call only if their metrics were used to find the engine
    replicas: int = 0  # most replicas of a service that counts its calls; 0 if none does

    @property
    def all_stayed(self) -> bool:
        return self.stayed == self.sessions

    @property
    def alone(self) -> str:
        """The engine that answered all calls although there are others, or an empty string."""
        several = max(len(self.calls), self.replicas) > 1
        return next((engine for engine, calls in self.calls.items() if several and calls == sum(self.calls.values())), "")

    @property
    def is_good(self) -> bool:
        """Whether all sessions stayed on one engine, and not all of them on the same of several."""
        return self.all_stayed and not self.alone

    def text(self) -> str:
        """Returns a sentence for users without a full stop, such as `6 of 6 sessions stayed on one engine`, with the calls per engine."""
        if self.unknown == self.sessions:
            return "it is unknown whether sessions stayed on one engine"
        unknown = f", {self.unknown} unknown" if self.unknown else ""
        calls = ", ".join(f"{engine} {count}" for engine, count in sorted(self.calls.items()))
        alone = f"; all calls went to {self.alone}: an id that is not read, or a policy that needs load" if self.alone else ""
        return f"{self.stayed} of {self.sessions} sessions stayed on one engine{unknown} (calls per engine: {calls}{alone})"

    def short_text(self) -> str:
        """Returns how many sessions stayed on one engine, such as `6 of 6` or `6 of 6 (all on a)`, or `unknown`."""
        alone = f" (all on {self.alone})" if self.alone else ""
        return "unknown" if self.unknown == self.sessions else f"{self.stayed} of {self.sessions}{alone}"

    def advice(self) -> str:
        """Returns what may help if not all sessions stayed on one engine."""
        if self.unknown:
            return "give the engines `metrics`, whose counters say which one answered, or use engines that write `nvext.worker_id`"
        return "choose a policy of the router that keeps sessions, and check that it reads the id from the `headers` or `fields`"


def probe_sessions(endpoint: Endpoint, body: Json, targets: Sequence[Target]) -> SessionProbe:
    """Makes the calls of SESSIONS test sessions, and returns where they were answered. Raises BackendError if a call fails.

    The calls are made one at a time, because only then the counters of the engines say who answered. All calls of a session come in a
    row, so that a router that takes the engines in turn does not return to the same engine by chance.

    Args:
        endpoint: The router, with the labels of the backend.
        body: A request without messages.
        targets: The metrics of the engines. They are read if answers do not name their engine.
    """
    finder = EngineFinder(targets)
    sessions = [_engines_of_session(endpoint, body, finder) for _ in range(SESSIONS)]
    answered = Counter(engine for engines in sessions for engine in engines if engine is not None)
    return SessionProbe(
        SESSIONS,
        sum(None not in engines and len({*engines}) == 1 for engines in sessions),
        sum(None in engines for engines in sessions),
        {**dict.fromkeys(finder.counted, 0), **answered},
        finder.replicas,
    )


def _engines_of_session(endpoint: Endpoint, body: Json, finder: EngineFinder) -> list[str | None]:
    """Makes the calls of one session, whose prompt grows as that of an agent does. Returns the engine of each call."""
    messages = [{"role": "user", "content": " ".join(secrets.token_hex(3) for _ in range(WORDS))}]
    engines = []
    with probe_rollout(endpoint) as probe:
        for number in range(CALLS):
            answer = probe.chat({**body, "messages": messages}, ANSWER)
            content = answer.json()
            if answer.status != 200 or not isinstance(content, dict):
                raise BackendError(f"a call of a test session was answered {answer}")
            engines.append(finder.engine(content))
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"Go on with step {number + 2}."}]
    return engines


class EngineFinder:
    """Finds the engine that answered a call: the one that the answer names, or else the only one whose counter of calls has risen.

    The counters are read only for answers without a name. Nothing else may send calls meanwhile.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._before: CallCounts = calls_now(targets)
        self._uses_counters = False

    @property
    def replicas(self) -> int:
        """The number of replicas of the service with most replicas that count their calls, without engines for prefill.

        Several services may be one engine: a worker of Dynamo, and the server that it passes calls to.
        """
        return max(Counter(service for service, _ in self._before if not _is_prefill(service)).values(), default=0)

    @property
    def counted(self) -> list[str]:
        """The engines whose counters were used: SERVICE[REPLICA]. Empty if all answers named their engine."""
        return [_name(*source) for source in self._before] if self._uses_counters else []

    def engine(self, answer: Json) -> str | None:
        """Returns the name of the engine that has just answered, or None if it is unknown. To be called after each call."""
        if (worker := engine_name(worker_in(answer.get("nvext") or {}))) is not None:
            return worker
        if not self._before:
            return None
        self._uses_counters = True
        end = time.monotonic() + COUNT_PATIENCE
        while not (risen := self._risen(after := calls_now(self._targets))) and time.monotonic() < end:
            time.sleep(COUNT_POLL)
        self._before = after
        return _name(*risen[0]) if len(risen) == 1 else None

    def _risen(self, after: CallCounts) -> list[tuple[str, int]]:
        """Returns the engines that have answered since the last call. Engines for prefill are left out: another one answers the call."""
        return [source for source, calls in calls_between(self._before, after).items() if calls and not _is_prefill(source[0])]


def _is_prefill(service: str) -> bool:
    return PREFILL in service.lower()


def _name(service: str, replica: int) -> str:
    return f"{service}[{replica}]"
