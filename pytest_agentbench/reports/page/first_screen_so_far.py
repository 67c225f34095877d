"""What is read first of a run that goes on: how many rollouts have ended, how, and the means so far, without a claim about the rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_agentbench.records import EVALUABLE, Rollout
from pytest_agentbench.reports.page.first_screen import figure, text
from pytest_agentbench.reports.words import number, statuses_text
from pytest_agentbench.runs.sessions import Session

SHOWN = 8  # scores of a suite


@dataclass
class SoFar:
    """Counts of the rollouts that have ended, by suite and variant."""

    statuses: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sums: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))  # of each group's scores
    scored: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # rollouts that have it
    failed_calls: int = 0
    calls: int = 0

    def add(self, rollout: Rollout, by: int = 1) -> None:
        group = rollout.key.group
        self.statuses[group][rollout.status] += by
        for name, score in rollout.scores.items() if rollout.status in EVALUABLE else ():
            self.sums[group, name] += by * float(score)
            self.scored[group][name] += by
        self.calls += by * len(rollout.all_calls)
        self.failed_calls += by * sum(call.error_kind is not None for call in rollout.all_calls)

    def remove(self, rollout: Rollout) -> None:
        """Takes back what was counted of a rollout that ran again."""
        self.add(rollout, -1)

    @property
    def ended(self) -> int:
        """Rollouts."""
        return sum(sum(counts.values()) for counts in self.statuses.values())


def first_screen_so_far(name: str, session: Session | None, found: SoFar, *, stopped: bool) -> str:
    """HTML, as that of a run that has ended."""
    return "\n".join(_lines(name, session, found, stopped=stopped))


def _lines(name: str, session: Session | None, so_far: SoFar, *, stopped: bool) -> Iterator[str]:
    yield f'<section class="run" aria-label="Run {text(name)}">'
    begun = f"; session {session.number} began at {session.started_at}, {session.concurrency} rollouts in flight at most" if session else ""
    yield f'<p class="soft">{text(name + begun)}</p>'
    how = "It has stopped" if stopped else "It goes on"
    yield f'<h1 class="verdict open">{how}: {so_far.ended:,} rollouts have ended</h1>'
    if stopped:
        again = text(f"--agentbench-resume={name}")
        yield f"<p>No session works on it: it is summed up now, or was killed. <code>{again}</code> goes on with it.</p>"
    yield '<div class="figures">'
    for group, statuses in so_far.statuses.items():
        about = f"{group} " if len(so_far.statuses) > 1 else ""
        for score, count in [*so_far.scored[group].items()][:SHOWN]:
            if count:
                yield figure(f"{about}{score}", number(so_far.sums[group, score] / count, 3), "", f"mean of {count:,} so far")
        yield figure(f"{about}rollouts", f"{sum(statuses.values()):,}", "", statuses_text(statuses))
    if so_far.calls:
        yield figure("LLM calls", f"{so_far.calls:,}", "", f"{so_far.failed_calls:,} failed")
    yield "</div>"
    if so_far.ended:
        yield '<p class="soft">Short rollouts end first, so the means may move; intervals and the verdict come when the run has ended.</p>'
    yield "</section>"
