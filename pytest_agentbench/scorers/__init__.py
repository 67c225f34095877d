"""Scorers: functions that rate a rollout with a score, which is a number, further named numbers (`parts`) and an explanation.

Each built-in scorer has a module here and a line in SCORERS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.user_code import check_takes, is_import_path, load_object, with_options
from pytest_agentbench.records import Json, Rollout, Scale, Score
from pytest_agentbench.scorers.declaration import scale_of

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario, Suite

#: A function or a coroutine function. A scorer that calls a model takes an LLM as its third argument, `judge`. Its keyword-only
#: arguments are its options in suite.yaml. If it cannot score a rollout it may raise any exception: the rollout's record then has
#: the error instead of the score.
Scorer = Callable[["Scenario", Rollout], Score]

#: The positional parameters of a scorer. `judge` is optional.
PARAMETERS = ("scenario", "rollout", "judge")

#: Built-in scorers; any other name is an import path, `my_package.scorers:politeness` or `./scorers.py:politeness`.
SCORERS: Mapping[str, str] = {
    "action_completion": "pytest_agentbench.scorers.action_completion:action_completion",
    "completeness": "pytest_agentbench.scorers.completeness:completeness",
    "exact": "pytest_agentbench.scorers.exact:exact",
    "exact_match": "pytest_agentbench.scorers.exact_match:exact_match",
    "hallucinated": "pytest_agentbench.scorers.hallucinated:hallucinated",
    "judged_answer": "pytest_agentbench.scorers.judged_answer:judged_answer",
    "nat_action_completion": "pytest_agentbench.scorers.nat_action_completion:nat_action_completion",
    "nat_compat": "pytest_agentbench.scorers.nat_compat:nat_compat",
    "numeric": "pytest_agentbench.scorers.numeric:numeric",
    "parameter_accuracy": "pytest_agentbench.scorers.parameter_accuracy:parameter_accuracy",
    "reasoning_quality": "pytest_agentbench.scorers.reasoning_quality:reasoning_quality",
    "regex": "pytest_agentbench.scorers.regex:regex",
    "repeated": "pytest_agentbench.scorers.repeated:repeated",
    "reward": "pytest_agentbench.scorers.reward:reward",
    "schema_valid": "pytest_agentbench.scorers.schema_valid:schema_valid",
    "state_equals": "pytest_agentbench.scorers.state_equals:state_equals",
    "tsq": "pytest_agentbench.scorers.tsq:tsq",
    "tsq_arguments": "pytest_agentbench.scorers.tsq:tsq_arguments",
    "tsq_multiset": "pytest_agentbench.scorers.tsq:tsq_multiset",
    "tsq_ordered": "pytest_agentbench.scorers.tsq:tsq_ordered",
    "tsq_subset": "pytest_agentbench.scorers.tsq:tsq_subset",
    "tsq_superset": "pytest_agentbench.scorers.tsq:tsq_superset",
}


def built_in_scales(suite: Suite) -> tuple[dict[str, Scale], list[str]]:
    """Returns score -> its scale for the built-in scorers of a suite, and a sentence for each one that is unknown or has wrong options."""
    scales: dict[str, Scale] = {}
    faults: list[str] = []
    for name, options in suite.scorers.items():
        if not is_import_path(name):
            try:
                scales[name] = declared_scale(name, load_scorer(name, suite.folder, options))
            except ConfigError as error:
                faults.append(str(error))
    return scales, faults


def declared_scale(name: str, scorer: Scorer) -> Scale:
    """Returns the scale that a loaded scorer declares. Raises ConfigError if its range cannot be computed from its options."""
    try:
        return scale_of(scorer)
    except Exception as error:  # A range that depends on options is computed by the scorer's own code, which may raise anything.
        raise ConfigError(f"scorer {name!r}: its range cannot be computed; correct its options or its @scorer: {error}") from error


def load_scorer(name: str, folder: Path = Path(), options: Json | None = None) -> Scorer:
    """Returns the function of a scorer with its options applied. `name` is a built-in name, or `./file.py:function` in `folder`.

    Raises:
        ConfigError: The name is unknown, the import path does not lead to a function, the function has other parameters, or an option
            is not among its keyword-only arguments.
    """
    scorer: Scorer = load_object("scorer", name, SCORERS, folder)
    if not callable(scorer):
        raise ConfigError(f"scorer {name!r} is a {type(scorer).__name__}, must be a function (scenario, rollout) -> Score")
    bound: Scorer = with_options("scorer", name, scorer, options or {})
    check_takes(f"scorer {name!r}", bound, PARAMETERS if "judge" in inspect.signature(bound).parameters else PARAMETERS[:2])
    return bound
