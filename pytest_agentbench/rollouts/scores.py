"""Runs scorers on rollouts, in a session and when a stored run is scored again. If a scorer fails, the rollout gets an error, no score."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import InfraError, RolloutError
from pytest_agentbench.lib.bounded import run_bounded
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.error_texts import place_of, with_place
from pytest_agentbench.lib.foreign import USUAL, Sizes, cut
from pytest_agentbench.lib.standard_streams import print_exception
from pytest_agentbench.lib.threads import is_async, off_the_loop
from pytest_agentbench.lib.user_code import is_import_path
from pytest_agentbench.records import EVALUABLE, Draft, Json, Rollout, Score
from pytest_agentbench.rollouts.advice import error_text
from pytest_agentbench.rollouts.attempt_context import current
from pytest_agentbench.rollouts.user_errors import keep
from pytest_agentbench.scorers import Scorer, load_scorer
from pytest_agentbench.scorers.declaration import scale_of

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario

#: Returns a client for the judge. Raises InfraError if there is no judge.
MakeJudge = Callable[[], Awaitable["LLM"]]


class FailedElsewhere(Exception):
    """A scorer failed in a process of its own, or that process died. The text is the complete reason of the missing score."""


def scorer_of(name: str, folder: Path, options: Json | None) -> Scorer:
    """Loads a scorer of the suite in `folder` and returns it. A suite's own scorer runs in a thread if it is not async, as it may block."""
    scorer = load_scorer(name, folder, options)
    if is_import_path(name) and not is_async(scorer):
        return off_the_loop(scorer)  # type: ignore[return-value]  # a scorer may be a coroutine function
    return scorer


async def scored(
    rollout: Rollout,
    scenario: Scenario,
    scorers: Mapping[str, Scorer],
    judge: MakeJudge,
    seconds: float | None = None,
    sizes: Sizes = USUAL,
) -> Rollout:
    """Runs the scorers. Returns the rollout with its scores, the scores of its drafts, and the errors of scorers.

    A rollout that is not evaluable is returned as it is. Each scorer may take `seconds`, or any time if that is None.
    """
    if not rollout.evaluable:
        return rollout
    scores: dict[str, Score] = {}
    errors: dict[str, str] = {}
    with_scores = dataclasses.replace(rollout, scores=scores, score_errors=errors)
    if (mark := current()) is not None:
        mark.rollout = with_scores
    await _score_all(scores, errors, rollout, scenario, scorers, judge, seconds, sizes)
    without_judge = {name: each for name, each in scorers.items() if not wants_judge(each)}
    drafts = await _scored_drafts(rollout, scenario, without_judge, seconds, sizes)
    return dataclasses.replace(with_scores, drafts=drafts)


async def _scored_drafts(
    rollout: Rollout, scenario: Scenario, scorers: Mapping[str, Scorer], seconds: float | None, sizes: Sizes
) -> tuple[Draft, ...]:
    """Returns the rollout's drafts with their scores. Drafts are attempts of the agent, one of which it has chosen.

    A scenario with several user messages has labels (expected results) only for all together. A draft answers one of them, so it gets no
    scores. See docs/agents/judges.md.
    """
    drafts = []
    for draft in rollout.drafts:
        scores: dict[str, Score] = {}
        if draft.status in EVALUABLE and not scenario.turns:
            done: Json = {name: getattr(draft, name) for name in ("status", "reason", "answer", "tool_calls", "final_state")}
            as_if = dataclasses.replace(rollout, **done)
            errors: dict[str, str] = {}  # Not kept, because those of the chosen draft are in the rollout.
            await _score_all(scores, errors, as_if, scenario, scorers, no_judge, seconds, sizes)
        drafts.append(dataclasses.replace(draft, scores=scores))
    return tuple(drafts)


async def _score_all(
    scores: dict[str, Score],
    errors: dict[str, str],
    rollout: Rollout,
    scenario: Scenario,
    scorers: Mapping[str, Scorer],
    judge: MakeJudge,
    seconds: float | None,
    sizes: Sizes,
) -> None:
    """Runs the scorers one after the other. Adds their scores to `scores`, and the reasons of missing ones to `errors`."""
    for name, scorer in scorers.items():
        if (mark := current()) is not None:
            mark.begin_score(name, seconds)
        end = await run_bounded(functools.partial(score, scorer, scenario, rollout, judge, sizes), seconds)
        if end.took_too_long:
            errors[name] = f"the scorer took longer than {seconds:g} s{end.left}"
        elif end.error is not None:  # A scorer may be user code and raise anything.
            keep(name, end.error)
            if not isinstance(end.error, FailedElsewhere):  # The other process has printed it.
                print_exception(end.error)
            errors[name] = score_error(end.error, scorer, sizes)
        else:
            scores[name] = end.result()


def score_error(error: BaseException, scorer: Scorer, sizes: Sizes) -> str:
    """Returns why a score is missing: `KeyError: 'lamp' (scorers.py:12)`, or the text of a FailedElsewhere."""
    if isinstance(error, FailedElsewhere):
        return str(error)
    kind = "judge_error" if isinstance(error, RolloutError) and wants_judge(scorer) else ""
    return with_place(error_text(error, sizes.reason, kind), error)


async def score(scorer: Scorer, scenario: Scenario, rollout: Rollout, judge: MakeJudge, sizes: Sizes = USUAL) -> Score:
    """Runs a scorer. Returns its score, with a truncated explanation. Raises whatever the scorer raises."""
    if wants_judge(scorer):
        value: Any = scorer(scenario, rollout, await judge())  # type: ignore[call-arg]  # such a scorer takes a third argument
    else:
        value = scorer(scenario, rollout)
    result = _checked(await value if inspect.isawaitable(value) else value, scorer)
    if (explanation := cut(str(result.explanation), sizes.reason)) is result.explanation:
        return result
    return Score(result, result.parts, explanation)


def wants_judge(scorer: Scorer) -> bool:
    """Returns whether a scorer calls a model. Such a scorer has a third parameter, `judge`."""
    return "judge" in inspect.signature(scorer).parameters


async def no_judge() -> LLM:
    """Takes the place of a function that returns the judge's client, if there is no backend. Always raises InfraError."""
    raise InfraError("no model is available here to judge, because scores are computed without a backend; run the suite")


def _checked(value: Any, scorer: Scorer) -> Score:
    """Converts a scorer's result, which may be a plain number, to a Score.

    Raises TypeError for anything else, and ValueError for a number that is no score, or outside the declared range.
    """
    scale, place = scale_of(scorer), place_of(scorer)
    if not isinstance(value, int | float) and not hasattr(value, "__float__"):
        what = f"{beginning(repr(value), 80)} ({type(value).__name__})"
        wanted = "a number, or a Score with parts and an explanation (from pytest_agentbench import Score)"
        raise TypeError(f"the scorer returned {what}; return {wanted}{place}")
    try:
        result = value if isinstance(value, Score) else Score(value)
    except ValueError as error:
        raise ValueError(f"{error}{place}") from None
    if not scale.contains(result):
        raise ValueError(f"the score {float(result):g} is outside the range that its scorer declares ({scale.range_text}){place}")
    return result
