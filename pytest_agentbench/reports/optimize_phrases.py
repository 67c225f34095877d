"""The sentences of the report on a study of `agentbench optimize`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_agentbench.optimize.confirmation import CONFIRMED
from pytest_agentbench.optimize.ranking import selection_gain
from pytest_agentbench.optimize.space import QUALITY
from pytest_agentbench.optimize.spending import SPENDING
from pytest_agentbench.records import Json
from pytest_agentbench.suites.arms import CONCURRENCY, OF_AGENT, OF_BACKEND, VARIANT

if TYPE_CHECKING:
    from pytest_agentbench.optimize.confirmation import Confirmation
    from pytest_agentbench.optimize.search import RankedTrial


def settings_text(settings: Json) -> str:
    """`agent.temperature=0.2, concurrency=4`: settings on one line."""
    return ", ".join(f"{path}={_value_text(value)}" for path, value in settings.items())


def _value_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def trial_result(trial: RankedTrial) -> str:
    """`rollout.p50 x0.931, quality -0.010`: how some settings compare with the default ones in a search."""
    if trial.state == "fail" or trial.evidence is None:
        return f"not measured ({trial.why})"
    ratios = ", ".join(f"{name} x{math.exp(value):.3f}" for name, value in trial.evidence.ratios.items())
    return f"{ratios}, {QUALITY} {round(-trial.evidence.loss, 3) + 0.0:+.3f}{' (pruned)' if trial.state == 'pruned' else ''}"


def looked_at(trials: Sequence[RankedTrial]) -> str:
    """Returns how many settings a search looked at, and how much faster the best of equal ones would look by chance."""
    measured = [each for each in trials if each.evidence and each.state == "complete"]
    states = {state: sum(each.state == state for each in trials) for state in ("complete", "pruned", "fail")}
    counts = f"{len(trials)} settings: {states['complete']} complete, {states['pruned']} pruned, {states['fail']} not measured"
    errors = [next(iter(each.evidence.errors.values())) for each in measured if each.evidence]
    gain = 1 - math.exp(selection_gain(errors))
    word = "cheaper" if measured and measured[0].evidence and next(iter(measured[0].evidence.errors)) in SPENDING else "faster"
    return f"{counts}; if all were equal, the best would look {100 * gain:.1f} % {word} by chance alone" if len(errors) > 1 else counts


def verdict(confirmation: Confirmation) -> str:
    """`better: rollout.p50 x0.90 [0.88, 0.92], tsq.mean +0.00 [-0.03, +0.03]`: the result of a confirmation."""
    speed, quality = confirmation.speed, confirmation.quality.decision
    score = f"{confirmation.quality.suite_rule.rule.metric}.mean{_interval(quality.estimate, quality.low, quality.high, '+.3f')}"
    reasons = "; ".join(filter(None, (speed.reason, quality.reason)))
    text = f"{confirmation.verdict}: {speed.metric}{_interval(speed.estimate, speed.low, speed.high, '.3f', 'x')}, {score}"
    return f"{text} ({quality.verdict} with a margin of {abs(quality.threshold):g}){f'; {reasons}' if reasons else ''}"


def _interval(estimate: float | None, low: float | None, high: float | None, form: str, sign: str = "") -> str:
    if estimate is None:
        return " unknown"
    if low is None or high is None:
        return f" {sign}{estimate:{form}}"
    return f" {sign}{estimate:{form}} [{low:{form}}, {high:{form}}]"


NOTHING = "no settings ranked before the default ones, so there is nothing to confirm"


def advice(confirmation: Confirmation | None) -> str:
    """Returns what follows from the result of a study."""
    if confirmation is None:
        return "keep the default settings"
    if confirmation.verdict == CONFIRMED:
        return "these settings are better than the default ones on scenarios that the search did not see"
    return "keep the default settings: what the search ranked first was not confirmed on scenarios that it did not see"


def as_yaml(settings: Json) -> str:
    """Returns settings as YAML: those of the agent for suite.yaml, those of the backend for its file, others as comments."""
    import yaml

    lines = [
        f"# --agentbench-{'variants' if path == VARIANT else path}={settings[path]}" for path in (CONCURRENCY, VARIANT) if path in settings
    ]
    for prefix, name, keep in ((OF_AGENT, "suite.yaml", "agent."), (OF_BACKEND, "the YAML of the backend", "")):
        own = {keep + path.removeprefix(prefix): value for path, value in settings.items() if path.startswith(prefix)}
        if own:
            lines += [f"# in {name}", yaml.safe_dump(_nested(own), sort_keys=False).rstrip()]
    return "\n".join(lines)


def _nested(settings: Mapping[str, Any]) -> Json:
    nested: Json = {}
    for path, value in settings.items():
        *above, last = path.split(".")
        inside = nested
        for name in above:
            inside = inside.setdefault(name, {})
        inside[last] = value
    return nested


def command(suite: str, settings: Json) -> str:
    """Returns the pytest command that runs a suite with some settings."""
    words = ["pytest", suite]
    for path, value in settings.items():
        if path in (CONCURRENCY, VARIANT):
            words.append(f"--agentbench-{'variants' if path == VARIANT else path}={value}")
        else:
            words.append(f"--agentbench-set={path}={value}")
    return shlex.join(words)
