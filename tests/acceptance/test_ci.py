"""Files and messages for CI: summary, annotations, comment, metrics and JUnit on GitHub and GitLab, and none of them elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_agentbench.reports import markdown, phrases
from pytest_agentbench.reports.comment import LIMIT as COMMENT_LIMIT
from pytest_agentbench.reports.document import Level
from pytest_agentbench.reports.headline import headline
from pytest_agentbench.reports.summary import LIMIT as SUMMARY_LIMIT
from pytest_agentbench.runs.run_file import read_run
from tests.findings import report_of, said
from tests.openmetrics import parsed
from tests.project import FIND_THEN_ANSWER, WAYS, Project

#: Options: no retries, and the threshold is judged although some rollouts could not be measured.
JUDGED = ("--agentbench-retries=0", "--agentbench-threshold=tsq.mean=0.9")

CI_FILES = {"comment.md", "metrics.txt", "summary.md"}


def on_github(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets up the environment of a GitHub step, and returns the path of its summary."""
    summary = project.root / "step-summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.root))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    return summary


def commands(result: pytest.RunResult) -> list[str]:
    """Returns the workflow commands that a step printed. GitHub reads them at the beginning of a line."""
    return [line for line in result.outlines if re.match(r"::(error|warning|notice) ", line)]


def troubled(project: Project) -> None:
    """Creates a suite in which scenario 0 passes, 1 and 2 fail, 3 and 4 cannot be measured, and the threshold of the mean fails."""
    project.suite(scenarios=5, expected=("find_item",), thresholds={"tsq": 0.5, "tsq.mean": 0.9})
    wrong = {"tool_calls": [{"name": "return_item", "arguments": {"item": "50%, or\nmore: ::error::"}}]}
    project.backend(
        [
            *({"match": {"contains": f"shop-{each}:"}, "status": 500, "message": "out of memory"} for each in (3, 4)),
            {"match": {"contains": "shop-1:", "turn": 0}, **wrong},
            {"match": {"contains": "shop-2:", "turn": 0}, **wrong},
            *FIND_THEN_ANSWER,
        ]
    )


@WAYS
def test_github(project: Project, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    """On GitHub the step's summary is appended to, annotations begin with the verdict, and a comment is in the run directory."""
    summary = on_github(project, monkeypatch)
    summary.write_text("of another program\n")
    troubled(project)

    result = project.run(*way, *JUDGED, "scenarios/shop")

    result.assert_outcomes(passed=1, failed=2, errors=2)
    assert 1 == result.ret
    found = commands(result)
    failed = r"::error file=scenarios/shop/test_shop\.py,line=\d+,title=test_tools\[shop-[12]\]::assert 0\.000 >= 0\.5.*"
    for pattern, line in zip(
        (
            r"::error title=agentbench%3A FAIL::FAIL, exit status 1: shop tsq\.mean 0\.333 \[.*\], required >= 0\.9 .*",
            r"::error file=scenarios/shop/suite\.yaml,line=1,title=shop%3A tsq\.mean >= 0\.9 of run::FAIL: 0\.3333; 2 of 5 rollouts .*",
            r"::error title=infra_error%3A 2 tests .*::2 tests .* shop\[shop-[34]\]: infra_error: .*out of memory.*",
            failed,
            failed,
        ),
        found,
        strict=True,
    ):
        assert re.fullmatch(pattern, line), line
    written = summary.read_text()
    assert written.startswith("of another program\n")
    run = read_run(project.directory)
    assert f"## agentbench: {markdown.prose(headline(run))}" in written
    assert "\n### Serving" in written
    comment = (project.directory / "comment.md").read_text()
    assert comment.startswith("<!-- agentbench: shop on embedded -->\n## agentbench: FAIL")
    assert 2 == len(
        re.findall(r"^\| `scenarios/shop/test_shop.py::test_tools\[shop-[12]\]` \| `assert 0.000 >= 0.5", comment, re.MULTILINE)
    )
    assert comment.count("infra_error") >= 1
    assert 2 == len(re.findall(r"^\| `scenarios/shop/test_shop.py::test_tools\[shop-[34]\]` \|", comment, re.MULTILINE))
    tests = project.run_json["tests"]
    assert (1, 2, 2, 0) == tuple(tests[name] for name in ("passed", "failed", "errors", "skipped"))


@pytest.mark.slow
def test_gitlab(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GitLab the run directory has a comment and metrics that an OpenMetrics parser accepts. No commands for GitHub are printed."""
    monkeypatch.setenv("GITLAB_CI", "true")
    troubled(project)

    result = project.run(*JUDGED, "scenarios/shop")

    assert [] == commands(result)
    assert {"comment.md", "metrics.txt"} == CI_FILES & {file.name for file in project.directory.iterdir()}
    text = (project.directory / "metrics.txt").read_text()
    assert text.endswith("# EOF\n")
    samples = {(sample.name, *sorted(sample.labels.values())): sample.value for family in parsed(text) for sample in family.samples}
    suite, performance = project.run_json["suites"]["shop"], project.run_json["performance"]
    assert suite["scores"]["tsq"]["mean"]["value"] == samples["agentbench_score_mean", "", "higher", "shop", "tsq"]
    assert (3, 2) == (samples["agentbench_rollouts", "ok", "shop"], samples["agentbench_rollouts", "infra_error", "shop"])
    assert (1, 0) == (samples["agentbench_verdict", "FAIL"], samples["agentbench_verdict", "PASS"])
    assert performance["ttft_ms"]["p50"] / 1e3 == pytest.approx(samples["agentbench_ttft_seconds", "p50"])
    assert performance["failed_calls"] == {"server_error": samples["agentbench_failed_calls", "server_error"]}


@pytest.mark.slow
def test_nothing_without_ci(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CI, or if it is switched off, no files for CI are written and no commands are printed."""
    project.suite(scenarios=2)

    plain = project.run("scenarios/shop")
    assert [] == commands(plain)
    assert set() == CI_FILES & {file.name for file in project.directory.iterdir()}

    summary = on_github(project, monkeypatch)
    assert [] == commands(project.run("--agentbench-ci=off", "scenarios/shop"))
    assert set() == CI_FILES & {file.name for file in project.directory.iterdir()}
    assert not summary.exists()


@pytest.mark.slow
def test_ci_chosen_by_option(project: Project) -> None:
    """`github` and `gitlab` can be chosen anywhere, by option or ini file. Another value is a usage error."""
    project.suite(scenarios=2)

    result = project.run("--agentbench-ci=github", "scenarios/shop")
    assert [
        re.fullmatch(r"::notice title=agentbench%3A PASS::PASS: .*; shop tsq 1\.000.*", line) is not None for line in commands(result)
    ] == [True]
    assert {file.name for file in project.directory.iterdir()} >= CI_FILES

    project.run("-o", "agentbench_ci=gitlab", "scenarios/shop")
    assert {"comment.md", "metrics.txt"} == CI_FILES & {file.name for file in project.directory.iterdir()}

    wrong = project.run("--agentbench-ci=jenkins", "scenarios/shop")
    assert 4 == wrong.ret
    wrong.stderr.fnmatch_lines(["*--agentbench-ci jenkins: must be auto, github, gitlab or off"])


@pytest.mark.slow
@WAYS
def test_many_failures(project: Project, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    """At most ten failures are annotated: the verdict, then the worst scores, and the last annotation counts the rest."""
    summary = on_github(project, monkeypatch)
    project.suite(scenarios=25, expected=("find_item", "order_item"), thresholds={"tsq": 0.9})
    project.backend([{"match": {"contains": "shop-17:"}, "text": "No."}, *FIND_THEN_ANSWER])

    result = project.run(*way, "--tb=no", "scenarios/shop")

    found = commands(result)
    assert 10 == len(found)
    assert "title=agentbench%3A FAIL::FAIL, " in found[0]
    assert "title=test_tools[shop-17]::" in found[1]
    assert re.fullmatch(r"::error title=[^:]*\b17\b[^:]*::17 .*", found[-1])
    assert summary.stat().st_size < SUMMARY_LIMIT
    comment = (project.directory / "comment.md").read_text()
    assert (5,) in said(report_of(project.directory, Level.SUMMARY), phrases.more)
    assert len(comment) < COMMENT_LIMIT


@pytest.mark.slow
def test_a_full_step_summary(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the step's summary is nearly full, our part is truncated to the remaining space or left out, so that GitHub still shows the
    summary.
    """
    summary = on_github(project, monkeypatch)
    project.suite(scenarios=2)
    for there, complete in ((SUMMARY_LIMIT - 5000, False), (SUMMARY_LIMIT - 1500, None)):
        summary.write_text("x" * there)
        project.run("scenarios/shop")
        assert there <= summary.stat().st_size <= SUMMARY_LIMIT
        ours = summary.read_text()[there:]
        if complete is None:
            assert not ours
        else:
            assert re.search(r"\*\*Truncated: \d+ of \d+ lines are left out, including .*See `report.md` of run \S+\.\*\*", ours)


@pytest.mark.slow
@WAYS
def test_junit(project: Project, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    """Each JUnit test case has status, scores, tokens and duration as properties, or only the status if it was not measured.

    No warning is printed.
    """
    monkeypatch.setenv("GITLAB_CI", "true")
    troubled(project)

    result = project.run(*way, "-W", "error", *JUDGED, "--junitxml=junit.xml", "scenarios/shop")

    assert "warning" not in result.stdout.str().lower()
    cases = {str(case.get("name")): case for case in ET.parse(project.root / "junit.xml").iter("testcase")}
    found = {name: {str(each.get("name")): str(each.get("value")) for each in case.iter("property")} for name, case in cases.items()}
    good = found["test_tools[shop-0]"]
    assert ("ok", "1.0", "2") == (good["status"], good["tsq"], good["llm_calls"])
    assert min(float(good[name]) for name in ("rollout_s", "prompt_tokens", "output_tokens")) > 0
    assert "infra_error" == found["test_tools[shop-3]"]["status"]
