"""Sessions on the shipped backend `thompson`, whose router stands before four built-in engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.router.decision_log import read_decisions
from tests.real.booted_stack import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_banking(tmp_path: Path) -> None:
    """With each preset, scores and number of calls are those of one engine alone. The engines answered as many calls as the tap sent.

    With `sticky`, each session stays on one engine, and the log of decisions has its calls.
    """
    limit = "--agentbench-limit=16"
    alone = run("embedded", tmp_path / "alone", limit)
    routed = run("thompson", tmp_path / "routed", limit, "--agentbench-ab=set:backend.settings.preset=nat|sticky")
    used = {each["arm"]: each for each in routed["engines"]}
    (only,) = alone["engines"]
    scores = [suite["scores"]["tsq"]["mean"]["value"] for record in (alone, routed) for suite in record["suites"].values()]
    (log,) = (tmp_path / "routed" / "latest" / "backend").glob("*sticky*/decisions.jsonl")
    sessions = [each.worker for each in read_decisions(log) if each.prefix and each.ending == "answered"]

    assert ["nat", "sticky"] == [*used]
    assert (3, 1) == (len(scores), len({*scores}))
    assert [only["tap_calls"]] * 2 == [sum(engine["calls"] for engine in used[arm]["engines"]) for arm in used]
    assert [only["tap_calls"]] * 2 == [used[arm]["tap_calls"] for arm in used]
    assert (16, 16) == (used["sticky"]["traced"], used["sticky"]["stayed"])
    assert len(sessions) >= used["sticky"]["tap_calls"]
