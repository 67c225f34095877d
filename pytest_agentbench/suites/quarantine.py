"""Scenarios that no gate counts for a while: they run and are reported, somebody answers for each, and the list cannot grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

ONE_IN = 20  # scenarios of a suite that may be in quarantine, but always one: a gate that looks away from more says nothing


@dataclass(frozen=True)
class Quarantined:
    """An entry of `quarantine` in a suite.yaml."""

    scenario: str
    owner: str
    reason: str
    expires: date  # the last day on which it holds

    def __str__(self) -> str:
        return f"quarantined until {self.expires} ({self.owner}: {self.reason})"


def quarantine_faults(entries: Sequence[Quarantined], scenarios: Collection[str], today: date) -> Iterator[str]:
    """Yields a sentence for each entry that is unknown, double or expired, and for too many; `scenarios` are all ids of the suite."""
    counts = Counter(each.scenario for each in entries)
    for each in entries:
        if each.scenario not in scenarios:
            yield f"quarantine: the data set has no scenario {each.scenario!r}; remove the entry, or name one that it has"
        elif counts[each.scenario] > 1:
            yield f"quarantine: {each.scenario!r} is there {counts[each.scenario]} times; keep one entry"
        elif each.expires < today:
            yield (
                f"quarantine: the entry of {each.scenario!r} expired on {each.expires}; "
                f"{each.owner}, who owns it, removes it or gives it another date"
            )
    allowed, share = max(1, len(scenarios) // ONE_IN), 100 // ONE_IN
    if len(entries) > allowed:
        yield f"quarantine: {len(entries)} of {len(scenarios)} scenarios, more than {share} % of them; at most {allowed} may be in it"
