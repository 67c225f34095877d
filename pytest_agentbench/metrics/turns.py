"""What rollouts did that take turns with others, and in how much time: the time of the others' turns is not theirs."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pytest_agentbench.metrics import windows
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import Rollout


@dataclass
class Turns:
    """When any of some rollouts ran, all attempts included."""

    _spans: defaultdict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))  # session -> of attempts

    def add(self, rollout: Rollout) -> None:
        for attempt in rollout.attempts:
            self._spans[attempt.session].append((attempt.started_ns, attempt.ended_ns))

    @property
    def sessions(self) -> dict[int, list[Span]]:
        """Session -> its turns, in order and apart from each other, by the session's clock."""
        return {session: windows.at_least(spans, 1) for session, spans in self._spans.items()}

    @property
    def busy_s(self) -> float:
        """Seconds of all turns together."""
        return sum(map(windows.total_ns, self.sessions.values())) / 1e9


@dataclass
class Work:
    """Rollouts and their calls, counted; rates are over the time of their turns."""

    turns: Turns = field(default_factory=Turns)
    statuses: Counter[str] = field(default_factory=Counter)
    evaluable: int = 0
    calls: int = 0
    failed_calls: int = 0
    output_tokens: int = 0

    def add(self, rollout: Rollout) -> None:
        self.turns.add(rollout)
        self.statuses[rollout.status] += 1
        self.evaluable += rollout.evaluable
        for call in rollout.all_calls:
            self.calls += 1
            self.failed_calls += call.error_kind is not None
            self.output_tokens += 0 if call.error_kind else output_tokens(call)

    @property
    def rollouts_per_hour(self) -> float | None:
        busy_s = self.turns.busy_s
        return self.evaluable * 3600 / busy_s if busy_s else None

    @property
    def output_tokens_per_s(self) -> float | None:
        busy_s = self.turns.busy_s
        return self.output_tokens / busy_s if busy_s else None
