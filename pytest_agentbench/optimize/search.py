"""The search of `agentbench optimize`: Optuna suggests settings, and they are ranked beside the default ones. It claims nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.gate.verdict import ENOUGH
from pytest_agentbench.lib import codec
from pytest_agentbench.optimize.plan import StudyPlan
from pytest_agentbench.optimize.ranking import ComparedSettings, RankingEvidence, RankingTerms, evidence_of
from pytest_agentbench.optimize.space import SpaceSpec
from pytest_agentbench.records import Json

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial, TrialState

INSTALL = "agentbench optimize needs Optuna: pip install 'pytest-agentbench[optimize]'"
STARTUP = 4  # trials before Optuna prunes any
EVIDENCE, SETTINGS, WHY, EXHAUSTED = "evidence", "settings", "why", "exhausted"  # names of attributes in Optuna's storage


class NotMeasured(AgentbenchError):
    """Some settings could not be measured, for example because the backend did not start with them. They are not ranked."""


class MeasureSettings(Protocol):
    """Runs some settings beside the default ones."""

    def __call__(self, settings: Json, scenarios: Sequence[str], name: str) -> ComparedSettings:
        """Runs one trial of these scenarios with both. `name` is different for each part of each trial. Raises NotMeasured."""
        ...


@dataclass(frozen=True)
class RankedTrial:
    """One trial of a search."""

    number: int  # from 0
    settings: Json  # path -> value
    state: str  # `complete`, `pruned` or `fail`
    values: tuple[float, ...]  # value of each objective, less is better; empty unless complete
    evidence: RankingEvidence | None
    why: str  # why it could not be measured


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides Optuna's notes on experimental features, which would end a session whose filters turn warnings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def require_optuna() -> None:
    """Raises ConfigError if Optuna is not installed."""
    if find_spec("optuna") is None:
        raise ConfigError(INSTALL)


def open_study(space: SpaceSpec, storage: Path | None = None) -> Study:
    """Opens the study in a journal file, or a new one in memory."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with _quiet():
        place: BaseStorage | None = JournalStorage(JournalFileBackend(str(storage))) if storage else None
        return optuna.create_study(
            storage=place,
            study_name="agentbench",
            load_if_exists=True,
            directions=["minimize"] * len(space.objectives),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
        )


def search(
    study: Study,
    space: SpaceSpec,
    terms: RankingTerms,
    plan: StudyPlan,
    measure: MeasureSettings,
    *,
    tell: Callable[[RankedTrial], None] = lambda _: None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Runs the trials that the study still lacks. Calls `tell` after each, and stops before the next if `is_over` returns true.

    A trial that an earlier process began is continued. What Optuna suggests depends on the seed and on the trials before only, so a study
    that was ended at any time and continued is the same as one that was not.
    """
    while len(done := finished(study)) < plan.settings and not study.user_attrs.get(EXHAUSTED) and not is_over():
        study.sampler = _sampler(space, plan, len(done))
        with _quiet():
            trial = _next_trial(study)
            settings = space.suggest(trial)
        trial.set_user_attr(SETTINGS, settings)
        _run_trial(study, trial, settings, terms, plan, measure)
        tell(finished(study)[-1])


def _sampler(space: SpaceSpec, plan: StudyPlan, done: int) -> BaseSampler:
    """Returns Optuna's sampler for the next trial: all settings in random order if they are few enough, else TPE or NSGA-II."""
    from optuna import samplers

    seed = plan.seed + 1000 * done
    with _quiet():
        if space.size is not None and space.size <= plan.settings:
            return samplers.BruteForceSampler(seed=seed)
        return samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=max(5, plan.settings // 4))


def _next_trial(study: Study) -> Trial:
    """Returns the trial that an earlier process began and did not finish, or else a new one."""
    from optuna.trial import Trial, TrialState

    begun = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return Trial(study, begun[0]._trial_id) if begun else study.ask()


def _run_trial(study: Study, trial: Trial, settings: Json, terms: RankingTerms, plan: StudyPlan, measure: MeasureSettings) -> None:
    """Measures a trial part by part, and tells Optuna its values. Optuna may prune it after each part but the last."""
    from optuna.trial import TrialState

    parts: list[ComparedSettings] = []
    try:
        for place, scenarios in enumerate(plan.parts):
            parts.append(measure(settings, scenarios, f"trial-{trial.number}-part-{place}"))
            evidence = _enough(evidence_of(parts, terms), sum(map(len, plan.parts[: place + 1])))
            trial.set_user_attr(EVIDENCE, codec.plain(evidence))
            values = evidence.values(terms)
            if len(values) == 1 and place < len(plan.parts) - 1:
                with _quiet():  # A process that was killed may have reported it.
                    trial.report(values[0], place)
                if trial.should_prune():
                    _end(study, trial, TrialState.PRUNED)
                    return
    except NotMeasured as error:
        trial.set_user_attr(WHY, str(error))
        _end(study, trial, TrialState.FAIL)
        return
    _end(study, trial, TrialState.COMPLETE, values)


def _end(study: Study, trial: Trial, state: TrialState, values: Sequence[float] | None = None) -> None:
    """Tells Optuna how a trial ended."""
    try:
        with _quiet():
            study.tell(trial, values, state)
    except RuntimeError:  # The sampler of all settings stops the study after the last, which Optuna allows in its own loop only.
        study.set_user_attr(EXHAUSTED, value=True)


def _enough(evidence: RankingEvidence | None, scenarios: int) -> RankingEvidence:
    """Raises NotMeasured if too many rollouts have no measurement, because an infra_error is not a bad score."""
    if evidence is None or evidence.pairs < ENOUGH * scenarios:
        pairs = evidence.pairs if evidence else 0
        raise NotMeasured(f"only {pairs} of {scenarios} scenarios were measured with both settings, fewer than {ENOUGH * 100:g} %")
    return evidence


def finished(study: Study) -> list[RankedTrial]:
    """Returns the trials that have ended, in their order."""
    trials = study.get_trials(deepcopy=False)
    return [_ranked(each) for each in trials if each.state.is_finished()]


def _ranked(trial: FrozenTrial) -> RankedTrial:
    known = trial.user_attrs.get(EVIDENCE)
    state = trial.state.name.lower()
    return RankedTrial(
        trial.number,
        trial.user_attrs.get(SETTINGS, {}),
        state,
        tuple(trial.values) if state == "complete" and trial.values else (),
        codec.read(RankingEvidence, known) if known else None,
        trial.user_attrs.get(WHY, ""),
    )


def pareto_set(study: Study) -> list[RankedTrial]:
    """Returns the completed trials that no other one is better than in all objectives, the best in the first objective first.

    With one objective that is the trial with the lowest value.
    """
    complete = [each for each in finished(study) if each.values]
    front = [
        each
        for each in complete
        if not any(
            other.values != each.values and all(one <= two for one, two in zip(other.values, each.values, strict=True))
            for other in complete
        )
    ]
    return sorted(front, key=lambda each: each.values)


def winner(study: Study) -> RankedTrial | None:
    """Returns the settings to confirm: those with the best first objective, or None if none ranked before the default settings."""
    best = next(iter(pareto_set(study)), None)
    return best if best and best.values[0] < 0 else None


def importances(study: Study) -> dict[str, float]:
    """Returns setting -> its share in the differences of the first objective, by Optuna's PED-ANOVA. Empty with too few trials."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    if len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < STARTUP:
        return {}
    with _quiet():
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), target=lambda trial: trial.values[0], normalize=True)
