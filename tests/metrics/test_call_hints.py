"""Hints that are learnt from recorded calls, and how right hints were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_agentbench.metrics.call_hints import FEWEST, HintAccuracy, HintLearner, HintRow, HintUse, quantile, sessions
from pytest_agentbench.records import JUDGE, LLMCall, Rollout, ToldHints

MS = 1_000_000


def call(received_ms: int, ended_ms: int, tokens: int | None = 10, role: str = "", **changes: object) -> LLMCall:
    made = LLMCall(received_ms * MS, received_ms * MS, ended_ms * MS, dialect="chat", completion_tokens=tokens, role=role)
    return replace(made, **changes)  # type: ignore[arg-type]


def rollout(*calls: LLMCall, **changes: object) -> Rollout:
    own, others = [call for call in calls if call.measured], [call for call in calls if not call.measured]
    made = Rollout("shop", "s-0", "default", 1, "ok", calls=tuple(own), other_calls=tuple(others))
    return replace(made, **changes)  # type: ignore[arg-type]


THREE = (call(0, 100, 10), call(150, 200, 20), call(600, 700, 30))


@pytest.mark.parametrize(
    ("values", "share", "found"), [([3.0], 0.9, 3.0), ([4.0, 1.0, 2.0, 3.0], 0.5, 2.0), ([*map(float, range(1, 11))], 0.9, 9.0)]
)
def test_quantiles(values: Sequence[float], share: float, found: float) -> None:
    """A quantile is the smallest value that is not less than this share of the values."""
    assert found == quantile(values, share)


def test_sessions() -> None:
    """Each role has a session with its calls in their order. Calls to other endpoints, and refused calls, are in none."""
    elsewhere, refused = call(1, 2, endpoint="http://x"), call(3, 3, sent_ns=None)
    of_role = {
        role: [each[1:] for each in calls] for role, calls in sessions(rollout(*THREE[::-1], call(5, 9, role=JUDGE), elsewhere, refused))
    }

    assert {"": [(1, 2, 50.0), (2, 1, 400.0), (3, 0, None)], JUDGE: [(1, 0, None)]} == of_role


@pytest.mark.parametrize("changes", [{"status": "infra_error"}, {"status": "agent_error"}, {"kind": "adhoc"}, {"kind": "primer"}])
def test_incomplete_rollouts(changes: dict[str, str]) -> None:
    """Rollouts that ended early, and calls that are in no rollout of a scenario, have no sessions."""
    assert [] == [*sessions(rollout(*THREE, **changes))]


def test_calls_at_the_same_time() -> None:
    """The pause before a call that began while the one before it ran is unknown."""
    ((_, calls),) = sessions(rollout(call(0, 100), call(50, 120)))

    assert [None, None] == [each.next_ms for each in calls]


def test_what_is_learnt() -> None:
    """A row has the numbers of the calls with its turn. A turn with few calls takes tokens and pauses from the turns before it as well."""
    learner = HintLearner()
    for tokens in range(1, FEWEST + 1):
        learner.add(rollout(call(0, 100, tokens), call(100 + tokens, 300, 50)))
    learner.add(rollout(call(0, 100, 100), call(300, 400, 60), call(500, 600, 70), call(700, 800, role=JUDGE)))

    assert [
        HintRow("", 1, 11, 1.09, 6.0, 10.0, 6.0),
        HintRow("", 2, 11, 0.09, 50.0, 50.0, 100.0),
        HintRow("", 3, 1, 0.0, 50.0, 60.0, 100.0),
        HintRow(JUDGE, 1, 1, 0.0, 10.0, 10.0, None),
    ] == learner.rows()


def test_calls_without_tokens() -> None:
    """Calls that failed, or whose tokens are unknown, are not learnt from."""
    learner = HintLearner()
    learner.add(rollout(call(0, 100, None), call(150, 200, 5, error_kind="cut")))

    assert [] == learner.rows()


def test_how_right_hints_were() -> None:
    """Part of the calls within the hinted tokens, and mean absolute errors: of the usual tokens, the calls that follow and the pause."""
    hints = ToldHints(tokens=25, usual_tokens=12.0, remaining=1.5, next_ms=100)
    accuracy = HintAccuracy()
    accuracy.add(rollout(*(replace(each, hints=hints) for each in THREE), call(800, 900, role=JUDGE)))

    assert (HintUse("", "", 3, 2 / 3, (2 + 8 + 18) / 3, (0.5 + 0.5 + 1.5) / 3, (50 + 300) / 2),) == accuracy.uses()


def test_hints_that_are_not_learnt() -> None:
    """Without a usual number of tokens, the error is that of the hinted one. What was not hinted is unknown."""
    accuracy = HintAccuracy()
    accuracy.add(rollout(*(replace(each, hints=ToldHints(tokens=25)) for each in THREE)))

    assert (HintUse("", "", 3, 2 / 3, (15 + 5 + 5) / 3, None, None),) == accuracy.uses()


def test_arms() -> None:
    """Arms are counted apart, by the last part of the variant."""
    accuracy = HintAccuracy(("static", "learnt"))
    for variant, tokens in (("learnt", 30), ("fast-static", 5), ("default", 5)):
        accuracy.add(rollout(*(replace(each, hints=ToldHints(tokens=tokens)) for each in THREE), variant=variant))

    assert [("", 0.0), ("learnt", 1.0), ("static", 0.0)] == [(use.arm, use.covered) for use in accuracy.uses()]
