"""Which models were asked for, and which ones answered, over the calls of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_agentbench.records import Json


@dataclass(frozen=True)
class ModelUse:
    """Calls that asked for one model and were answered by one."""

    asked: str  # the model that calls asked for
    answered: str | None  # the one that their answers name; null where they name none, or there was no answer
    calls: int


def models_of(asked: Iterable[str], answered: Iterable[str]) -> tuple[ModelUse, ...]:
    """Returns how often each model was asked for and answered, by name; of each call the model that was asked for, and the answer's."""
    counts = Counter(zip(asked, answered, strict=True))
    return tuple(ModelUse(model, by or None, count) for (model, by), count in sorted(counts.items()) if model)


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
