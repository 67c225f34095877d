"""Which models were asked for, and which ones answered, over the calls of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_agentbench.records import Json, LLMCall


class Models:
    """Counts calls by the model that they asked for and the one that their answers name."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()

    def add(self, calls: Iterable[LLMCall]) -> None:
        self._calls.update((call.model, call.answered_by) for call in calls if call.model)

    def summary(self) -> list[Json]:
        """As run.json has them, by name."""
        return [{"asked": asked, "answered": answered or None, "calls": count} for (asked, answered), count in sorted(self._calls.items())]


def names(models: Sequence[Json]) -> str | None:
    """`a, b (answered by c)`: every model that was asked for, and where another one answered which; None of no call.

    Calls that nobody answered do not say who would have.
    """
    answers: dict[str, set[str]] = {}
    for each in models:
        answers.setdefault(each["asked"], set()).update([each["answered"]] if each["answered"] else [])
    return ", ".join(_name(asked, by) for asked, by in answers.items()) or None


def _name(asked: str, by: set[str]) -> str:
    return asked if by <= {asked} else f"{asked} (answered by {', '.join(sorted(by))})"


def unlisted(asked: Json, listed: Sequence[str]) -> list[str]:
    """A sentence for each model that suites ask for (suite under a variant -> model) and that the backend does not list."""
    if not listed:
        return []
    return [
        f"{group} asks for the model {model!r}, which the backend does not list ({', '.join(listed)}); its calls ask for it all the same"
        for group, model in asked.items()
        if model not in listed
    ]
