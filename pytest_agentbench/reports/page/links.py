"""Where the rollouts that a report names are on the page."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from pytest_agentbench.records import RolloutKey

LONGEST = 300  # characters of an address; a rollout with a longer name is found in the table


class RolloutLinks:
    """The addresses of the rollouts of a run, by the names that its report has for them.

    A report names a rollout by its key or its id, or any rollout of a scenario by the scenario. If several suites have the same
    name, only the suite in whose section it stands tells which one is meant; elsewhere such a name has no address.
    """

    def __init__(self, keys: Iterable[RolloutKey]) -> None:
        ordered = sorted(keys, key=lambda key: key.trial)
        self._of_group: dict[tuple[str, str], RolloutKey] = {}
        self._of_run: dict[str, RolloutKey | None] = {}  # None: it may be one or the other
        for name, key in (*((key.id, key) for key in ordered), *((key.scenario, key) for key in ordered)):
            self._of_group.setdefault((key.group, name), key)
            found = self._of_run.setdefault(name, key)
            if found and found.suite != key.suite:
                self._of_run[name] = None
        self._of_run.update({str(key): key for key in ordered})

    def of(self, name: str, titles: Iterable[str] = ()) -> str:
        """Returns what a link to a rollout leads to; empty if it is not known which one is meant.

        `titles` are those of the sections in which the name stands. That of a suite is the name of its group.
        """
        of_groups = [key for title in titles if (key := self._of_group.get((title, name)))]
        key = of_groups[-1] if of_groups else self._of_run.get(name)
        return _address(key) if key else ""


def _address(key: RolloutKey) -> str:
    """Returns an address that the page takes apart again; empty if it would be too long, or if half a character is in it."""
    try:
        address = f"#{quote(f'{key.suite}/{key.id}')}"
    except UnicodeEncodeError:
        return ""
    return address if len(address) <= LONGEST else ""
