"""`agentbench rescore` computes other scores for existing rollouts, without a backend."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  # here, once, as yaml: pytester forgets imports, and what is in C does not load twice
import pytest
import yaml

from pytest_agentbench.cli import main
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.rollouts.rescore import load_groups, rescore
from pytest_agentbench.runs.journal import read_journal, record_line
from pytest_agentbench.runs.results import ScoredBy
from pytest_agentbench.runs.run_file import Run, read_run
from pytest_agentbench.runs.tasks_and_mistakes import Triage
from tests.findings import gate_of, report_of, said
from tests.project import FIND_THEN_ANSWER, Project

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]

OWN = """
def fussy(scenario, rollout, *, best=1.0):
    return best / (scenario.id != "shop-1")

async def judged(scenario, rollout, judge):
    return 0.25
"""

#: The model makes one call too many for shop-1.
RULES: list[Json] = [
    {
        "match": {"turn": 0, "contains": "shop-1"},
        "tool_calls": [{"name": "find_item", "arguments": {"item": "lamp"}}, {"name": "order_item", "arguments": {"item": "lamp"}}],
    },
    *FIND_THEN_ANSWER,
]


@pytest.fixture
def shop(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a run of three scenarios. None of our processes is left."""
    project.backend(RULES)
    project.suite(thresholds={"tsq": 0.5, "tsq.mean": 0.9}, scorers=["tsq", "./scorer.py:judged"])
    project.write("scenarios/shop/scorer.py", OWN)
    project.run_once("scenarios/shop")
    monkeypatch.chdir(project.root)
    return project


def change(project: Project, **keys: Any) -> None:
    """Changes the suite after its run."""
    file = project.root / "scenarios/shop/suite.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **keys}))


def rescored(project: Project) -> Path:
    return project.directory.with_name(f"{project.directory.name}-rescored")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_same_scores_again(shop: Project, capsys: Capture) -> None:
    """If nothing has changed, the new run has the same scores. The old run is unchanged, and other commands can read the new one."""
    before = contents(shop.directory)

    assert 0 == main(["rescore"])

    said = capsys.readouterr().out.splitlines()
    new = rescored(shop)
    assert [
        "shop tsq: mean 0.889, now 0.889; 0 of 3 rollouts changed",
        "shop judged: not scored again, because its scorer asks a judge",
    ] == said[:2]
    assert f"wrote {new}" == said[-1]
    assert before == contents(shop.directory)
    assert shop.rollouts == [*read_journal(new)]
    old_run, new_run = read_run(shop.directory), read_run(new)
    assert new_run.rescored is not None
    assert replace(old_run, id=new.name, rescored=replace(new_run.rescored, run=old_run.id)) == new_run
    assert 0 == main(["show", str(new)])
    assert "judged      0.250" in capsys.readouterr().out


def test_other_scorers_and_options(shop: Project, capsys: Capture) -> None:
    """The suite's current scorers and options are used. Scores of judges are kept, and thresholds are judged again."""
    change(shop, scorers=["tsq_multiset", {"./scorer.py:fussy": {"best": 0.5}}, "tsq"])

    assert 0 == main(["rescore", shop.directory.name])

    assert [
        "shop tsq_multiset: mean none, now 0.889; 3 of 3 rollouts changed",
        "shop fussy: mean none, now 0.500; 2 of 3 rollouts changed",
        "shop fussy: the scorer failed on 1 of them: ZeroDivisionError: float division by zero (scorer.py:3)",
        "shop tsq: mean 0.889, now 0.889; 0 of 3 rollouts changed",
    ] == capsys.readouterr().out.splitlines()[:4]
    suite = read_run(rescored(shop)).suites["shop"]
    assert ("tsq", "judged", "tsq_multiset", "fussy") == suite.scorers
    assert ScoredBy("./scorer.py:fussy", {"best": 0.5}) == suite.scored_by["fussy"]
    assert {"fussy": 1} == suite.score_errors
    assert [0.25] * 3 == [rollout.score("judged") for rollout in read_journal(rescored(shop))]


def test_one_scorer(shop: Project, capsys: Capture) -> None:
    """`--scorer` selects scorers. It may name a scorer that the suite does not use, also by import path."""
    assert 0 == main(["rescore", "--scorer", "exact_match", "--scorer", "./scorer.py:fussy"])

    said = capsys.readouterr().out.splitlines()
    assert ["shop exact_match: mean none, now 0.667; 3 of 3 rollouts changed"] == said[:1]
    for rollout in read_journal(rescored(shop)):
        assert {"tsq", "judged", "exact_match"} <= {*rollout.scores}
    assert 4 == main(["rescore", "--scorer", "exact_mach"])
    assert (
        "agentbench: no scorer 'exact_mach' (did you mean 'exact_match'?); known: action_completion, completeness, exact, "
        in capsys.readouterr().err
    )


ENDLESS = """
import asyncio, time

async def endless(scenario, rollout):
    while scenario.id == "shop-0":
        try:
            await asyncio.sleep(100)
        except BaseException:
            pass
    return 1.0

def blocked(scenario, rollout):
    while scenario.id == "shop-1":
        time.sleep(100)
    return 1.0
"""


def test_scorers_that_do_not_end(shop: Project) -> None:
    """A scorer has as much time as in a session, even if it ignores its cancellation, and the command ends."""
    shop.write("scenarios/shop/endless.py", ENDLESS)
    change(shop, timeout=1, scorers=["tsq", "./endless.py:endless", "./endless.py:blocked"])

    command = [sys.executable, "-m", "pytest_agentbench.cli", "rescore"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert (0, "") == (ended.returncode, ended.stderr)
    left = "and was left running"
    errors = {each.scenario: {name: why.endswith(left) for name, why in each.score_errors.items()} for each in read_journal(rescored(shop))}
    assert {"shop-0": {"endless": True}, "shop-1": {"blocked": True}, "shop-2": {}} == errors


def means(run: Run) -> list[tuple[str, float | None]]:
    """Returns the verdict of each rule and the estimate that it is based on."""
    return [(rule.verdict, rule.estimate) for rule in run.gate.rules] if run.gate else []


def test_limits_are_judged_again(shop: Project) -> None:
    """A threshold of a mean is judged by the new scores."""
    shop.write("scenarios/shop/scorer.py", OWN + "\ndef tsq(scenario, rollout): return 1.0\n")
    assert ("FAIL", [("FAIL", 0.8888888888888888)]) == ((run := read_run(shop.directory)).verdict, means(run))

    assert 0 == main(["rescore", "--scorer", "./scorer.py:tsq"])

    run = read_run(rescored(shop))
    assert ("PASS", [("PASS", 1.0)]) == (run.verdict, means(run))


def test_thresholds_of_scenarios_are_judged_again(shop: Project, capsys: Capture) -> None:
    """If rollouts do not reach the threshold of each scenario, the rescored run fails, whatever its means are."""
    change(shop, thresholds={"tsq": 0.5})
    shop.run("scenarios/shop").assert_outcomes(passed=3)
    shop.write("scenarios/shop/scorer.py", OWN + "\ndef tsq(scenario, rollout): return 0.4 if scenario.id == 'shop-1' else 1.0\n")

    assert 0 == main(["rescore", "--scorer", "./scorer.py:tsq"])

    run = read_run(rescored(shop))
    assert ("FAIL", 1, None) == (run.verdict, run.exit_status, run.gate)
    assert [("shop-1", 0.4), ("shop-0", 1.0), ("shop-2", 1.0)] == [
        (each.scenario, each.scores["tsq"]) for each in run.suites["shop"].scenarios
    ]
    passes = run.suites["shop"].passes
    assert passes is not None
    assert (2 / 3, 0.5) == (passes.pass_all[0].value, passes.floor)
    assert "shop tsq: 1 of 3 rollouts do not reach the threshold 0.5\n" in capsys.readouterr().out


def test_mistakes_follow_the_scores(shop: Project) -> None:
    """Mistakes in the reports follow the new scores. With a score of arguments, wrong arguments count as well."""
    shop.backend([{"match": {"turn": 0}, "tool_calls": [{"name": "find_item", "arguments": {"item": "vase"}}]}, *FIND_THEN_ANSWER])
    shop.run("scenarios/shop")
    old = triage(shop.directory)

    assert 0 == main(["rescore", "--scorer", "tsq"]) == main(["rescore", "--scorer", "parameter_accuracy"])

    assert ([], 0) == ([each.kind for each in old.kinds], old.faulty)
    assert old == triage(rescored(shop))
    new = triage(second := shop.directory.with_name(f"{rescored(shop).name}-2"))
    assert ([("bad argument", 3)], 3) == ([(each.kind, each.rollouts) for each in new.kinds], new.faulty)
    assert {(3, 3)} == {(each.faulty, each.rollouts) for (each,) in said(report_of(second), suite_phrases.faulty)}


def triage(directory: Path) -> Triage:
    """Returns the counted mistakes of the suite shop in a run."""
    counted = read_run(directory).suites["shop"].triage
    assert counted is not None
    return counted


def test_settings_of_the_session_are_kept(shop: Project) -> None:
    """A rescored run keeps gate, agent and other settings of its session, even if the suite has changed."""
    change(shop, gate=["tsq.mean >= 0.1"], deterministic=True, agent={"kind": "react"})

    assert 0 == main(["rescore", "--scorer", "exact_match"])

    was, now = (read_run(each).suites["shop"] for each in (shop.directory, rescored(shop)))
    assert (was.gate, was.deterministic, was.agent, was.thresholds) == (now.gate, now.deterministic, now.agent, now.thresholds)


def test_other_data(shop: Project, capsys: Capture) -> None:
    """If the data differ from those of the run, the command fails, says what differs, and writes nothing."""
    file = shop.root / "scenarios/shop/data.json"
    file.write_text(json.dumps([*json.loads(file.read_text()), shop.entry("shop-9")]))

    assert 4 == main(["rescore"])

    said = capsys.readouterr().err
    assert f"agentbench: {file} is not the data set of the run: size 3, now 4; sha256 " in said
    assert not rescored(shop).exists()


def test_nothing_to_score(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A run whose backend never answered is refused in a sentence, and nothing is written."""
    monkeypatch.chdir(project.root)
    project.suite(scenarios=2)
    project.run("--agentbench-backend=http://127.0.0.1:9/v1", "scenarios/shop")
    before = sorted((project.root / "reports").iterdir())

    assert 4 == main(["rescore"])

    assert f"agentbench: {Path('reports/latest')} has nothing to score: " in capsys.readouterr().err
    assert before == sorted((project.root / "reports").iterdir())


def test_a_suite_that_moved(shop: Project, capsys: Capture) -> None:
    """If a suite's folder has moved, the error names the old path, and --suite gives the new one."""
    moved = (shop.root / "scenarios/shop").rename(shop.root / "store")

    assert 4 == main(["rescore"])
    assert f"agentbench: suite 'shop': {shop.root}/scenarios/shop/suite.yaml does not exist; pass the suite's folder with --suite\n" == (
        capsys.readouterr().err
    )
    assert 0 == main(["rescore", "--suite", str(moved)])


def test_memory(shop: Project) -> None:
    """Only one rollout is in memory at a time, however long the journal is."""
    first = shop.rollouts[0]
    with (shop.directory / "rollouts.jsonl").open("ab") as lines:
        for trial in range(2, 2000):
            lines.write(sealed(record_line(dataclasses.replace(first, trial=trial, log="x" * 20_000))) + b"\n")
    run = read_run(shop.directory)
    groups = load_groups(run, {}, [])

    tracemalloc.start()
    target, _, _ = asyncio.run(rescore(run, shop.directory, groups))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert 40_000_000 < (target / "rollouts.jsonl").stat().st_size
    assert peak < 10_000_000


def test_unmeasured_rollouts_are_kept(shop: Project) -> None:
    """Rollouts without a measurement, and those of manual calls in tests, are copied to the new journal unchanged."""
    adhoc = Rollout("test_x.py", "test_x", "default", 1, "ok", kind="adhoc")
    failed = Rollout("shop", "shop-0", "default", 2, "agent_error", "KeyError")
    with (shop.directory / "rollouts.jsonl").open("ab") as lines:
        lines.write(sealed(record_line(adhoc)) + b"\n" + sealed(record_line(failed)) + b"\n")

    assert 0 == main(["rescore"])

    first, second = [*read_journal(rescored(shop))][3:]
    assert adhoc == first
    assert dataclasses.replace(failed, content=second.content) == second
    # The rollout counts as 0, and that value belongs to the new scorer.
    assert {"tsq"} == second.content["scorers"].keys()


@pytest.fixture
def fussy(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a run, `old`, in which the suite's own scorer gave 1 to all rollouts. The current scorer gives 0."""
    project.suite(scenarios=12, scorers=["tsq", "./scorer.py:fussy"], gate=["fussy.mean >= 0.5"])
    project.write(
        "scenarios/shop/scorer.py", "from pytest_agentbench import scorer\n@scorer(range=(0, 1))\ndef fussy(scenario, rollout): return 1.0"
    )
    project.good_run("old")
    project.write(
        "scenarios/shop/scorer.py", "from pytest_agentbench import scorer\n@scorer(range=(0, 1))\ndef fussy(scenario, rollout): return 0.0"
    )
    monkeypatch.chdir(project.root)
    return project


def test_hashes_follow_the_scores(fussy: Project, capsys: Capture) -> None:
    """A gate compares a rescored run only with runs of the same scorer. Kept scores keep their hash."""
    fussy.run("scenarios/shop")
    fussy.directory.rename(fussy.root / "reports" / "new")

    def refused(run: str, base: str, score: str) -> bool:
        capsys.readouterr()
        main(["gate", run, "--baseline", base, "--gate", f"{score}.mean >= -0.9 vs baseline"])
        return f"the baseline's {score} is from another version of the scorer (hash " in capsys.readouterr().out

    assert 0 == main(["rescore", "old"]) == main(["rescore", "old", "--scorer", "tsq"])

    assert refused("new", "old", "fussy")
    assert not refused("new", "old-rescored", "fussy")
    assert refused("old", "old-rescored", "fussy")
    assert not refused("old", "old-rescored-2", "fussy")
    assert refused("new", "old-rescored-2", "fussy")
    assert not any(refused("new", base, "tsq") for base in ("old", "old-rescored", "old-rescored-2"))
    old, new, rescored = (read_run(Path("reports", name)).identity for name in ("old", "new", "old-rescored"))
    assert old is not None and new is not None and rescored is not None
    assert new.scoring == rescored.scoring != old.scoring
    assert new.hashes["scoring"] == rescored.hashes["scoring"] != old.hashes["scoring"]


def test_the_gate_is_judged_again(fussy: Project, capsys: Capture) -> None:
    """Verdict and exit status of the rescored run come from its gate on the new scores, also in its report."""
    assert 0 == main(["rescore", "old"])

    was, run = read_run(Path("reports/old")), read_run(Path("reports/old-rescored"))
    assert was.gate is not None and run.gate is not None
    assert ("PASS", 0) == (was.gate.verdict, was.exit_status)
    assert ("FAIL", "FAIL", 1) == (run.gate.verdict, run.verdict, run.exit_status)
    assert 0.0 == run.gate.rules[0].estimate
    assert re.search(r"^rule +FAIL: .*fussy\.mean .*, required >= 0\.5", capsys.readouterr().out, re.MULTILINE)
    assert "FAIL" == gate_of(report_of(Path("reports/old-rescored"))).verdict


def test_a_missing_baseline(fussy: Project, capsys: Capture) -> None:
    """If the session's baseline no longer exists, nothing is written, unless --baseline names another one."""
    assert 0 == main(["rescore", "old"])
    fussy.run("scenarios/shop", "--agentbench-baseline=old-rescored", "--agentbench-gate=fussy.mean >= -0.9 vs baseline")
    Path("reports/old-rescored").rename("reports/moved")
    capsys.readouterr()

    assert 4 == main(["rescore"])
    assert "no run 'old-rescored'; known: " in capsys.readouterr().err
    assert not rescored(fussy).exists()
    assert 0 == main(["rescore", "--baseline", "moved"])
    gate = read_run(rescored(fussy)).gate
    assert gate is not None
    assert "old-rescored" == gate.baselines["shop"].run
