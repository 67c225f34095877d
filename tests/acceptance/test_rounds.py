"""`--agentbench-trials=auto` runs whole trial rounds until the gate's verdict is final."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Json
from pytest_agentbench.reports import gate_phrases, terminal
from pytest_agentbench.reports.document import Document, Level
from pytest_agentbench.reports.sections import gate
from pytest_agentbench.runs.run_file import read_run
from tests.findings import reasons, report_of, rules, said, under
from tests.project import FIND_THEN_ANSWER, WAYS, Project

pytestmark = pytest.mark.slow

WRONG: list[Json] = [{"match": {"turn": 0}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]}, {"text": "Done."}]
BASELINE = "--agentbench-baseline=before"


def rule(margin: float) -> str:
    return f"--agentbench-gate=tsq.mean >= -{margin} vs baseline"


@pytest.fixture
def gated(project: Project) -> Project:
    """A project with a suite of 20 scenarios, and a run of it with five trials each and without failures."""
    project.suite(scenarios=20)
    project.run_once("scenarios/shop", "--agentbench-trials=5")
    assert 0 == project.run_json["exit_status"]
    project.directory.rename(project.root / "reports" / "before")
    return project


def told(report: Document) -> tuple[str, tuple[int, int, bool, int]]:
    """Returns a report's verdict, the maximum of rounds, the rounds that ran, whether the verdict is final, and the saved rollouts."""
    [(found, rounds)] = said(report, gate_phrases.gate)
    return found.verdict, (rounds.most, rounds.ran, rounds.stands, rounds.saved)


def trials_of(project: Project) -> Counter[int]:
    """Maps each trial to its number of rollouts."""
    return Counter(rollout.trial for rollout in project.rollouts)


@WAYS
def test_a_verdict_that_stands_early(gated: Project, way: tuple[str, ...]) -> None:
    """Tests read the first trial round.

    The second one decides, three rounds are saved, and the interval has the level of that interim look.
    """
    result = gated.run(*way, "scenarios/shop", BASELINE, rule(0.25), "--agentbench-trials=auto")

    assert 0 == result.ret
    result.assert_outcomes(passed=20)
    assert {1: 20, 2: 20} == trials_of(gated)
    result.stdout.fnmatch_lines(
        [
            "agentbench: round 2 of 5: PASS, the verdict stands",
        ]
    )
    report = report_of(gated.directory, Level.FULL)
    assert ("PASS", (5, 2, True, 60)) == told(report)
    assert [("shop", "tsq.mean >= -0.25 vs baseline", "PASS", 0.0)] == rules(report)
    [(judged,)] = under(report, "rule")
    assert (20, (40, 100), "99.39") == (judged.n, judged.trials, f"{judged.confidence * 100:.4g}")
    [(_, look, looked_at)] = said(report, gate_phrases.interim_look)
    assert (2, "PASS", 0.0, "99.39") == (look.round, looked_at.verdict, looked_at.estimate, f"{looked_at.confidence * 100:.4g}")
    rounds = gated.run_json["rounds"]
    assert (5, 2, True, 60, [2]) == (
        *(rounds[name] for name in ("most", "ran", "stands", "saved")),
        [each["round"] for each in rounds["looks"]],
    )
    assert {"rollouts": 40, "finished": 40, "not_run": 0} == gated.run_json["plan"]


def test_a_verdict_that_takes_longer(gated: Project) -> None:
    """A smaller margin needs a third round, although all tests ended with the first one."""
    result = gated.run("scenarios/shop", BASELINE, rule(0.12), "--agentbench-trials=auto:5")

    assert 0 == result.ret
    assert {1: 20, 2: 20, 3: 20} == trials_of(gated)
    result.stdout.fnmatch_lines(
        [
            "agentbench: round 2 of 5: INCONCLUSIVE, another round",
            "agentbench: round 3 of 5: PASS, the verdict stands",
        ]
    )
    assert ("PASS", (5, 3, True, 40)) == told(report_of(gated.directory, Level.SUMMARY))
    assert ["INCONCLUSIVE", "PASS"] == [look["verdict"] for look in gated.run_json["rounds"]["looks"]]


def test_a_verdict_that_never_stands(gated: Project) -> None:
    """The last round ends the run even if the verdict is INCONCLUSIVE. The start of the session warns that the margin is too small."""
    result = gated.run("scenarios/shop", BASELINE, rule(0.05), "--agentbench-trials=auto:3")

    assert 0 == result.ret
    assert {1: 20, 2: 20, 3: 20} == trials_of(gated)
    result.stdout.fnmatch_lines(
        [
            "agentbench: shop: the margin of `tsq.mean >= -0.05 vs baseline` is too small for 20 scenarios with 3 trials: *",
            "agentbench: round 3 of 3: INCONCLUSIVE, this was the last round",
        ]
    )
    assert ("INCONCLUSIVE", (3, 3, False, 0)) == told(report_of(gated.directory, Level.SUMMARY))


def test_a_failure(gated: Project) -> None:
    """A rule that fails ends the rounds at once with exit status 1."""
    gated.backend(WRONG)

    result = gated.run("scenarios/shop", BASELINE, "--agentbench-trials=auto")

    assert 1 == result.ret
    assert {1: 20, 2: 20} == trials_of(gated)
    assert ("FAIL", (5, 2, True, 60)) == told(report_of(gated.directory, Level.SUMMARY))


def test_other_rules_are_judged_once(gated: Project) -> None:
    """Rules about shares have no interim looks: they are judged at the end, on all rounds."""
    result = gated.run("scenarios/shop", BASELINE, rule(0.25), "--agentbench-gate=infra_error.rate <= 2%", "--agentbench-trials=auto")

    assert 0 == result.ret
    assert {"score": 40, "share": 40} == {each["kind"]: each["trials"][0] for each in gated.run_json["gate"]["rules"]}
    assert ["score"] == [each["kind"] for each in gated.run_json["rounds"]["looks"][0]["rules"]]


def test_pass_rates_wait_for_their_trials(gated: Project) -> None:
    """pass^3 cannot be computed before the third round, so that round runs. A threshold without a baseline has its own confidence level."""
    result = gated.run("scenarios/shop", "--agentbench-gate=pass^3 >= 0.5", "--agentbench-trials=auto")

    assert 0 == result.ret
    assert {1: 20, 2: 20, 3: 20} == trials_of(gated)
    assert [None, 0.9926] == [
        rule["low"] and round(rule["confidence"], 4) for look in gated.run_json["rounds"]["looks"] for rule in look["rules"]
    ]


def test_a_rule_that_no_trial_can_decide(gated: Project) -> None:
    """Without a baseline more trials cannot decide the rule, so there are none after the first look."""
    result = gated.run("scenarios/shop", rule(0.25), "--agentbench-trials=auto")

    assert 0 == result.ret
    assert {1: 20, 2: 20} == trials_of(gated)
    report = report_of(gated.directory, Level.SUMMARY)
    assert ("INCONCLUSIVE", (5, 2, True, 60)) == told(report)
    assert any("there is no baseline; " in reason for reason in reasons(report))


def test_rounds_in_blocks(gated: Project) -> None:
    """If the prefix cache is primed before each block, each round is its own block, and all variants have equally many rounds."""
    variants = {"hot": {"agent": {"temperature": 1.0}}}
    gated.suite(scenarios=6, variants=variants)

    result = gated.run(
        "scenarios/shop",
        "--agentbench-gate=tsq.mean >= 0.3",
        "--agentbench-trials=auto",
        "--agentbench-cache=primed",
        "--agentbench-variants=all",
    )

    assert 0 == result.ret
    rounds = gated.run_json["rounds"]
    assert rounds["stands"]
    assert {(variant, trial): 6 for variant in ("default", "hot") for trial in range(1, rounds["ran"] + 1)} == Counter(
        (rollout.variant, rollout.trial) for rollout in gated.rollouts if rollout.kind == "scenario"
    )
    assert {"shop", "shop-hot"} == {each["suite"] for each in rounds["looks"][-1]["rules"]}


def test_a_part_of_the_suite(gated: Project) -> None:
    """Rounds contain only the selected scenarios."""
    result = gated.run("scenarios/shop", BASELINE, rule(0.5), "--agentbench-trials=auto", "--agentbench-limit=12")

    assert 0 == result.ret
    assert {1: 12, 2: 12} == trials_of(gated)
    assert 36 == gated.run_json["rounds"]["saved"]


def test_resuming_a_run_with_rounds(gated: Project) -> None:
    """A session that was killed in its third round and then resumed has the same rounds and the same verdict, and only the missing rollouts
    run.
    """
    assert 0 == gated.run("scenarios/shop", BASELINE, rule(0.12), "--agentbench-trials=auto").ret
    whole = gated.run_json
    journal = gated.directory / "rollouts.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"trial":3' not in line]
    assert 40 == len(kept)
    journal.write_text("".join([*kept, next(line for line in lines if '"trial":3' in line)]))

    result = gated.run("scenarios/shop", BASELINE, rule(0.12), "--agentbench-trials=auto", "--agentbench-resume")

    assert 0 == result.ret
    assert {1: 20, 2: 20, 3: 20} == trials_of(gated)
    assert 19 == gated.run_json["sessions"][1]["rollouts"]
    assert whole["rounds"] == gated.run_json["rounds"]
    assert whole["gate"]["rules"] == gated.run_json["gate"]["rules"]


def test_a_finished_run_is_judged_at_its_level(gated: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`agentbench gate` uses the level of the interim look at which the run stopped."""
    monkeypatch.chdir(gated.root)
    assert 0 == gated.run("scenarios/shop", BASELINE, rule(0.25), "--agentbench-trials=auto").ret
    capsys.readouterr()

    assert 0 == main(["gate", "latest", "--baseline=before", "--gate=tsq.mean >= -0.25 vs baseline"])

    run = read_run(gated.directory)
    assert run.gate is not None and run.rounds is not None
    assert [line.text for line in terminal.lines(gate.document_of(run), Level.FULL)] == capsys.readouterr().out.splitlines()
    assert ("99.39", True) == (f"{run.gate.rules[0].confidence * 100:.4g}", run.rounds.stands)


def test_the_first_failed_test_ends_the_rounds(gated: Project) -> None:
    """Under -x, a session with a failed test does not wait for further rounds."""
    gated.suite(scenarios=20, test="def test_never(rollout):\n    assert not rollout.tools\n")

    result = gated.run("scenarios/shop", "-x", BASELINE, rule(0.12), "--agentbench-trials=auto", "--agentbench-concurrency=1")

    assert 1 == result.ret
    assert 0 == gated.run_json["rounds"]["ran"]
    assert ("INCONCLUSIVE", (5, 0, False, 0)) == told(report_of(gated.directory, Level.SUMMARY))


def test_a_time_limit(gated: Project) -> None:
    """After the time limit no round begins, and an incomplete round decides nothing."""
    # The limit ends within the first round, however fast the machine is.
    gated.backend(FIND_THEN_ANSWER, ttft_ms=1000)

    result = gated.run(
        "scenarios/shop", BASELINE, rule(0.05), "--agentbench-trials=auto:20", "--agentbench-time-limit=1s", "--agentbench-concurrency=20"
    )

    assert 6 == result.ret
    rounds = gated.run_json["rounds"]
    assert not rounds["stands"] and rounds["ran"] < 20
    assert "INCONCLUSIVE" == gated.run_json["gate"]["verdict"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--agentbench-trials=auto"], "*runs rounds of trials until a rule about a score or a pass rate is decided, but there is none*"),
        (
            ["--agentbench-trials=auto", "--agentbench-gate=ttft.p95 <= 5s"],
            "*a rule about a score or a pass rate is decided, but there is none*",
        ),
        (
            ["--agentbench-trials=auto:1"],
            "*--agentbench-trials auto:1: must be `auto`, or `auto:N` with a whole number from 2 to 20 for N",
        ),
        (["--agentbench-trials=auto:"], "*--agentbench-trials auto:: must be `auto`, or `auto:N` with *"),
        (["--agentbench-trials=often"], "*must be a whole number from 1 to 1000, or `auto`, or `auto:N` with at most N rounds of them"),
        (
            ["--agentbench-trials=auto", "--agentbench-ab=embedded,other=embedded"],
            "*cannot be used with --agentbench-ab; set a number of trials*",
        ),
        (["--agentbench-trials=auto", "--agentbench-inline"], "*cannot be used with --agentbench-inline; set a number of trials*"),
    ],
)
def test_auto_trials_that_are_refused(project: Project, arguments: list[str], sentence: str) -> None:
    """`auto` needs a rule that can end it. Each refusal says in a sentence what would work, and leaves no run."""
    project.suite()

    result = project.run("scenarios/shop", *arguments)

    assert 4 == result.ret
    result.stderr.fnmatch_lines([sentence])
    assert not [*(project.root / "reports").glob("2*")]
