"""Groups of rollouts of which the server takes no call: once that is certain, the others need not be tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_agentbench.metrics.blame import refusal
from pytest_agentbench.records import Rollout, RolloutKey


@dataclass
class SuiteRefusals:
    """What came of a suite under one variant so far."""

    answered: bool = False  # a call of it went well
    refused: dict[str, str] = field(default_factory=dict)  # scenario -> the server's words
    undecided: set[RolloutKey] | None = None  # rollouts that may still be answered; None: too few were refused to wait for them


class Refusals:
    """The groups of a session."""

    def __init__(self) -> None:
        self._groups: dict[str, SuiteRefusals] = {}

    def after(self, rollout: Rollout, planned: Iterable[RolloutKey], running: Iterable[RolloutKey]) -> str:
        """Why no further rollout of its group is to be tried, now that this one has ended; empty where some are.

        A group is given up when two of its scenarios, or its only one, were refused, no call of it was answered, and nothing runs any
        more that did so at that time: a refusal comes sooner than an answer.
        """
        group = self._groups.setdefault(rollout.key.group, SuiteRefusals())
        words = refusal(rollout.calls)
        group.answered = group.answered or any(call.error_kind is None for call in rollout.calls)
        if words:
            group.refused[rollout.scenario] = words
        if group.answered or not group.refused:
            return ""
        if group.undecided is None and (len(group.refused) > 1 or {key.scenario for key in planned} <= group.refused.keys()):
            group.undecided = {*running}
        if group.undecided is None:
            return ""
        group.undecided.discard(rollout.key)
        return "" if group.undecided else _sentence(rollout.key.group, [*group.refused.values()])


def _sentence(group: str, words: Sequence[str]) -> str:
    refused = f"the first {len(words)} scenarios" if len(words) > 1 else "the only scenario"
    return f"{words[0]}; the server refused {refused} of {group} and answered none, so no further one is tried"
