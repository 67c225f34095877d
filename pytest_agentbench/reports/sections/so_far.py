"""The report of a run that has not ended: finished rollouts by status, and the means so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_agentbench.records import EVALUABLE, Rollout
from pytest_agentbench.reports import phrases, suite_phrases
from pytest_agentbench.reports.document import AnyBlock, Document, Fact, Level, Measure, Note, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.sections.nodes import table
from pytest_agentbench.runs.nodes import NodeRecord
from pytest_agentbench.runs.sessions import Session

SHOWN = 8  # scores shown of a suite


@dataclass
class SoFar:
    """The counts and sums of scores of the rollouts that have finished so far, by suite and variant."""

    statuses: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sums: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))  # (group, score) -> sum of the scores
    scored: defaultdict[str, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )  # group -> score -> rollouts with that score
    failed_calls: int = 0
    calls: int = 0

    def add(self, rollout: Rollout, by: int = 1) -> None:
        """Counts a rollout. With `by=-1` it is subtracted."""
        group = rollout.key.group
        self.statuses[group][rollout.status] += by
        for name, score in rollout.scores.items() if rollout.status in EVALUABLE else ():
            self.sums[group, name] += by * float(score)
            self.scored[group][name] += by
        self.calls += by * len(rollout.all_calls)
        self.failed_calls += by * sum(call.error_kind is not None for call in rollout.all_calls)

    def remove(self, rollout: Rollout) -> None:
        """Subtracts an earlier record of a rollout that ran again."""
        self.add(rollout, -1)

    @property
    def ended(self) -> int:
        """The number of finished rollouts."""
        return sum(sum(counts.values()) for counts in self.statuses.values())


def document_so_far(name: str, session: Session | None, so_far: SoFar, *, stopped: bool, nodes: Sequence[NodeRecord] = ()) -> Document:
    """Returns the report of a run that has not ended. `session` is its last one. `stopped` means that no session is running rollouts.

    `nodes` are the node workers of its sessions so far.
    """
    headline = Fact("verdict", say(phrases.stopped if stopped else phrases.running, so_far.ended), "open", level=Level.HEADLINE)
    sections = [of("So far", _blocks(name, session, so_far, stopped=stopped)), of("Nodes", [table(nodes)] if nodes else [])]
    return Document.of(f"Run {name}", sections, headline)


def _blocks(name: str, session: Session | None, so_far: SoFar, *, stopped: bool) -> Iterator[AnyBlock]:
    summary = Level.SUMMARY
    for group, statuses in so_far.statuses.items():
        about = f"{group} " if len(so_far.statuses) > 1 else ""
        for score, count in [*so_far.scored[group].items()][:SHOWN]:
            if count:
                mean = Measure(so_far.sums[group, score] / count, about=phrases.mean_so_far(count))
                yield Fact(f"{about}{score}", mean, level=summary)
        yield Fact(f"{about}rollouts", Measure(sum(statuses.values()), digits=0, about=suite_phrases.statuses(statuses)), level=summary)
    if so_far.calls:
        yield Fact("LLM calls", Measure(so_far.calls, digits=0, about=phrases.failed_so_far(so_far.failed_calls)), level=summary)
    if session:
        yield Fact("session", say(phrases.session_began, session.number, session.started_at, session.concurrency), level=summary)
    if stopped:
        yield Note(say(phrases.how_to_resume, name), level=summary)
    if so_far.ended:
        yield Note(phrases.MEANS_MAY_MOVE, level=summary)
