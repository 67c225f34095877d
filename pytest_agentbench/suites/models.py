"""Which models were asked for, and which ones answered, over the calls of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_agentbench.records import Json, LLMCall


@dataclass(frozen=True)
class ModelUse:
    """Calls that asked for one model and were answered by one."""

    asked: str  # the model that calls asked for
    answered: str | None  # the one that their answers name; null where they name none, or there was no answer
    calls: int


class Models:
    """Counts calls by the model that they asked for and the one that their answers name."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()

    def add(self, calls: Iterable[LLMCall]) -> None:
        self._calls.update((call.model, call.answered_by) for call in calls if call.model)

    def summary(self) -> tuple[ModelUse, ...]:
        """By name."""
        return tuple(ModelUse(asked, answered or None, count) for (asked, answered), count in sorted(self._calls.items()))


def names(models: Sequence[ModelUse]) -> str | None:
    """`a, b (answered by c)`: every model that was asked for, and where another one answered which; None of no call.

    Calls that nobody answered do not say who would have.
    """
    answers: dict[str, set[str]] = {}
    for each in models:
        answers.setdefault(each.asked, set()).update([each.answered] if each.answered else [])
    return ", ".join(_name(asked, by) for asked, by in answers.items()) or None


def _name(model: str, by: set[str]) -> str:
    return model if by <= {model} else f"{model} (answered by {', '.join(sorted(by))})"


def unlisted(models: Json, listed: Sequence[str]) -> list[str]:
    """A sentence for each model that suites ask for (suite under a variant -> model) and that the backend does not list."""
    if not listed:
        return []
    return [
        f"{group} asks for the model {model!r}, which the backend does not list ({', '.join(listed)}); its calls ask for it all the same"
        for group, model in models.items()
        if model not in listed
    ]
