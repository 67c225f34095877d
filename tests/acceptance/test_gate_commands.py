"""`agentbench gate`, `baseline promote` and `calibrate` on runs of real sessions."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from pytest_agentbench.cli import main
from pytest_agentbench.gate.baselines import default_baseline
from pytest_agentbench.records import Json
from tests.findings import gate_of, report_of
from tests.project import FIND_THEN_ANSWER, Project

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]

WRONG: Json = {"tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]}
TWO_WRONG: list[Json] = [*({"match": {"turn": 0, "contains": f"shop-{n}:"}, **WRONG} for n in (1, 2)), *FIND_THEN_ANSWER]
ALL_WRONG: list[Json] = [{"match": {"turn": 0}, **WRONG}, {"text": "Done."}]
ONE_FAILS: list[Json] = [{"match": {"contains": "shop-1:"}, "status": 500}, *FIND_THEN_ANSWER]


@pytest.fixture
def gated(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a suite of 20 scenarios and a rule, and a run of it without failures. Commands run in the project."""
    project.suite(scenarios=20, gate=["limit.rate <= 2%"])
    project.good_run("before")
    monkeypatch.chdir(project.root)
    return project


def gate_lines(text: str) -> list[str]:
    """Returns the lines from the verdict to the last one about a rule or a scenario that got worse."""
    lines = [line.rstrip() for line in text.splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("gate  "))
    return [*itertools.takewhile(lambda line: line.startswith(("gate  ", "rule  ", "worse  ", "lower  ", " " * 12)), lines[first:])]


HALF, CLOSE, LENIENT = "tsq.mean >= -0.5 vs baseline", "tsq.mean >= -0.05 vs baseline", "infra_error.rate <= 10%"


@pytest.mark.parametrize(
    ("answers", "rules", "inconclusive", "status"),
    [
        (TWO_WRONG, [HALF], "pass", 0),
        (ALL_WRONG, [HALF], "pass", 1),
        (TWO_WRONG, [CLOSE], "pass", 0),
        (TWO_WRONG, [CLOSE], "fail", 7),
        (ONE_FAILS, [HALF], "pass", 6),
        (ONE_FAILS, [HALF, LENIENT], "pass", 6),
    ],
    ids=["pass", "fail", "inconclusive", "inconclusive-fails", "infra", "infra-allowed"],
)
def test_the_offline_verdict_is_the_sessions(
    gated: Project, capsys: Capture, answers: list[Json], rules: list[str], inconclusive: str, status: int
) -> None:
    """With the same options, `agentbench gate` prints the same lines as the session of the run, and has the same exit status."""
    gated.backend(answers)
    options = (
        "--agentbench-baseline=before",
        f"--agentbench-inconclusive={inconclusive}",
        *(f"--agentbench-gate={rule}" for rule in rules),
    )
    session = gated.run("-v", "scenarios/shop", "--agentbench-retries=0", *options)
    capsys.readouterr()

    words = [word for rule in rules for word in ("--gate", rule)]
    again = main(["gate", "latest", "--baseline", "before", "--inconclusive", inconclusive, *words])

    assert (status, status) == (session.ret, again)
    assert 2 < len(gate_lines(session.stdout.str()))
    assert gate_lines(session.stdout.str()) == gate_lines(capsys.readouterr().out)


def test_the_suite_is_not_needed(gated: Project, capsys: Capture) -> None:
    """The rules of suite.yaml are stored in the run, so a run from another machine can be judged by them."""
    (gated.root / "scenarios").rename(gated.root / "elsewhere")

    assert 0 == main(["gate", "before"])
    assert re.search(r"^rule +PASS: shop limit\.rate .*, required <= 2%", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("before", "--baseline", "before"), "the run {id} is its own baseline; name another run with --baseline"),
        (("before", "--gate", "tqs >= 0.5"), "gate rule 'tqs >= 0.5': no metric 'tqs' (did you mean 'tsq.mean'?); known: "),
        (("nightly",), "no run 'nightly'; known: "),
    ],
)
def test_usage_errors_of_gate(gated: Project, capsys: Capture, words: tuple[str, ...], sentence: str) -> None:
    """A usage error is exit status 4, because status 1 means a regression."""
    id = json.loads((gated.root / "reports" / "before" / "run.json").read_text())["id"]

    assert 4 == main(["gate", *words])
    assert capsys.readouterr().err.startswith(f"agentbench: {sentence.format(id=id)}")


def test_a_run_without_rules(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`agentbench gate` on a run whose suites have no rules is a usage error, not a PASS."""
    project.suite()
    project.run("scenarios/shop")
    monkeypatch.chdir(project.root)

    assert 4 == main(["gate"])
    assert "has no gate rules to apply; give some with --gate, or a baseline with --baseline" in capsys.readouterr().err


def test_promoting(gated: Project, capsys: Capture) -> None:
    """Rules with `vs baseline` use a promoted run. A worse run replaces it only with a reason, which is stored."""
    path = default_baseline("shop", Path("reports"))

    assert 0 == main(["baseline", "promote", "before"])
    said = capsys.readouterr().out
    assert "shop tsq.mean: none -> 1.000 (20 scenarios)\n" in said
    assert said.endswith(f"wrote {path}\n")
    first = path.read_text()
    assert "lamp" not in first

    gated.backend(TWO_WRONG)
    gated.run("scenarios/shop", "--agentbench-gate=tsq.mean >= -0.5 vs baseline")
    gate = gate_of(report_of(gated.directory))
    assert ("PASS", ["shop"]) == (gate.verdict, [*gate.baselines])
    assert 4 == main(["baseline", "promote"])
    told = capsys.readouterr()
    assert "shop tsq.mean: 1.000 -> 0.900 (20 scenarios)\n" in told.out
    assert told.err == (
        f"agentbench: the new baseline {path} is worse than the old one for shop tsq; "
        "if that is intended, give the reason with --reason TEXT\n"
    )
    assert first == path.read_text()

    assert 0 == main(["baseline", "promote", "--reason", "two labels were wrong"])
    header = json.loads(path.read_text().splitlines()[0])
    assert (json.loads(first.splitlines()[0])["run"], "two labels were wrong") == (header["replaces"], header["reason"])


def test_a_run_that_cannot_be_a_baseline(gated: Project, capsys: Capture) -> None:
    """A run with too many infra_errors cannot be promoted, and no file is written."""
    gated.backend(ONE_FAILS)
    gated.run("scenarios/shop", "--agentbench-retries=0")

    assert 4 == main(["baseline", "promote"])
    assert "cannot be a baseline for shop: 1 of 20 rollouts ended as infra_error, more than 2 %" in capsys.readouterr().err
    assert not (gated.root / "reports" / "baselines").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--suite", "shpo"), "no suite 'shpo' (did you mean 'shop'?); known: shop"),
        (("--to", "base.json"), "--to base.json: must end in .jsonl, because --agentbench-baseline recognises baseline files by it"),
    ],
)
def test_wrong_names_of_promote(gated: Project, capsys: Capture, words: tuple[str, ...], sentence: str) -> None:
    """Wrong names for `baseline promote` are refused in one sentence."""
    assert 4 == main(["baseline", "promote", "before", *words])
    assert sentence in capsys.readouterr().err


def test_promoting_elsewhere(gated: Project) -> None:
    """--to writes the baseline to another file, which --agentbench-baseline and --baseline accept."""
    gated.run("scenarios/shop")

    assert 0 == main(["baseline", "promote", "before", "--suite", "shop", "--to", "kept/shop.jsonl"])
    assert 0 == main(["gate", "latest", "--baseline", "kept/shop.jsonl"])


def test_calibrating(gated: Project, capsys: Capture) -> None:
    """`calibrate` prints YAML for suite.yaml with which these runs pass against each other, and names the scenarios whose scores vary."""
    names = ["before"]
    for name, rules in (("second", TWO_WRONG), ("third", FIND_THEN_ANSWER)):
        gated.backend(rules)
        gated.run("scenarios/shop")
        gated.directory.rename(gated.root / "reports" / name)
        names.append(name)
    capsys.readouterr()

    assert 0 == main(["calibrate", "shop", *names])

    said = capsys.readouterr().out
    assert "# 2 of 20 scenarios did not always get the same score: shop-1 0.00 to 1.00, shop-2 0.00 to 1.00\n" in said
    assert "# these runs differ in their backend, so the numbers include its effect\n" in said
    found = yaml.safe_load(said)
    assert {"tsq.mean"} == set(found["thresholds"])
    for run, base in (("before", "second"), ("second", "before"), ("third", "second")):
        words = [word for rule in found["gate"] for word in ("--gate", rule)]
        assert 0 == main(["gate", run, "--baseline", base, *words])
        assert "PASS" == capsys.readouterr().out.split()[1].rstrip(";")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("shop", "before"), "calibrate needs at least two runs; name each of them once"),
        (("shop", "before", "before"), "calibrate needs at least two runs; name each of them once"),
        (("shpo", "before", "latest"), "no suite 'shpo' (did you mean 'shop'?); known: shop"),
    ],
)
def test_usage_errors_of_calibrate(gated: Project, capsys: Capture, words: tuple[str, ...], sentence: str) -> None:
    """`calibrate` refuses a single run, the same run twice, and a suite that did not run."""
    gated.run("scenarios/shop", "--agentbench-limit=2")

    assert 4 == main(["calibrate", *words])
    assert sentence in capsys.readouterr().err


def test_power_of_a_run(gated: Project, capsys: Capture) -> None:
    """`agentbench power` uses the variation between a run's trials. A run with one trial per scenario is refused."""
    gated.run("scenarios/shop", "--agentbench-trials=2")

    assert 0 == main(["power", "shop", "--run", "latest", "--trials", "1,3"])
    said = capsys.readouterr().out
    assert "shop: 20 scenarios; tsq of a trial varies by 0.000 around its scenario's mean (standard deviation), as in 2" in said
    assert 4 == main(["power", "shoop", "--run", "latest"])
    assert "there is no suite in shoop (did you mean 'scenarios/shop'?); give a folder with a suite.yaml, " in capsys.readouterr().err
    assert 4 == main(["power", "scenarios/shop", "--run", "before"])
    assert "before has too few trials to show how trials vary" in capsys.readouterr().err
