"""Parts of a session that died: whether they are started again, and which rollout is to blame."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from pytest_agentbench.records import RolloutKey

MOST = 3  # deaths of one part between which no rollout ended, and as many rollouts to blame one after the other
SUSPECT = 2  # deaths of one part at which a rollout was in flight


@dataclass(frozen=True)
class Death:
    """What follows from one."""

    again: bool  # whether the part is to be started again
    alone: frozenset[RolloutKey] = frozenset()  # rollouts beside which nothing else is to run from now on
    culprit: RolloutKey | None = None  # the rollout that nothing but can have been the cause; it is not to run again


class Deaths:
    """Of one session. No rollout counts for less because a part died while it ran; but a part is not started again for ever.

    What was in flight at two deaths of a part runs alone; when the part dies a third time then, the one that ran is to blame.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # part -> deaths
        self._since: Counter[str] = Counter()  # part -> deaths since a rollout ended, or was to blame
        self._blamed: Counter[str] = Counter()  # part -> rollouts to blame since another one ended
        self._at: defaultdict[str, Counter[RolloutKey]] = defaultdict(Counter)  # part -> rollout -> deaths at which it was in flight
        self._culprits: set[RolloutKey] = set()

    def ended(self, key: RolloutKey, unused: Collection[str] = ()) -> None:
        """A rollout is in the journal; that it got through says nothing of parts that it had no use for."""
        if key not in self._culprits:
            for counts in (self._since, self._blamed):
                for part in counts.keys() - set(unused):
                    del counts[part]

    def add(self, part: str, in_flight: Collection[RolloutKey], *, culprit: RolloutKey | None = None) -> Death:
        """A part has died while these rollouts were in flight; `culprit` where the part itself has said which one it was."""
        self.counts[part] += 1
        self._since[part] += 1
        if culprit is None:
            self._at[part].update(in_flight)
            culprit = self._only(part, in_flight)
        if culprit is not None:
            self._since[part] = 0
            self._blamed[part] += 1
            self._culprits.add(culprit)
        return Death(self._since[part] < MOST and self._blamed[part] < MOST, self._suspects(part), culprit)

    def met(self, part: str, key: RolloutKey) -> int:
        """Deaths of a part at which a rollout was in flight."""
        return self._at[part][key]

    def _only(self, part: str, in_flight: Collection[RolloutKey]) -> RolloutKey | None:
        """The rollout that ran alone, when that was why."""
        keys = [*in_flight]
        return keys[0] if len(keys) == 1 and self._at[part][keys[0]] > SUSPECT else None

    def _suspects(self, part: str) -> frozenset[RolloutKey]:
        return frozenset(key for key, deaths in self._at[part].items() if deaths >= SUSPECT)
