"""`agentbench show` prints a finished run, in our terms and in those of other tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.reports import serving_phrases, terminal
from pytest_agentbench.reports.document import Fact, Level
from pytest_agentbench.runs.run_file import find_run
from tests.findings import report_of, said
from tests.project import Project


@pytest.fixture
def run(project: Project) -> Project:
    """A project with a run whose calls take time, and in which the third scenario failed."""
    project.backend([{"match": {"contains": "shop-2"}, "status": 500}, {"ttft_ms": 30, "text": "Here is what was found for you."}])
    project.suite(scenarios=3)
    project.run_once("scenarios/shop", "--agentbench-slo=ttft=5s", "--agentbench-retries=0", "--agentbench-concurrency=2")
    return project


def test_show(run: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` prints a run by name or path, or the last one, in the same words as the session did."""
    for name in ("", "latest", run.directory.name, str(run.directory), str(run.directory / "run.json")):
        assert 0 == main(["show", *filter(None, [name])])

        shown = report_of(find_run(name or "latest", Path("reports")))
        assert [line.text for line in terminal.lines(shown, Level.FULL)] == capsys.readouterr().out.splitlines()[1:]
    report = report_of(run.directory, Level.FULL)
    serving = next(each for each in report.sections if each.title == "Serving")
    assert ["timing quality"] == [block.label for block in serving.blocks[:1] if isinstance(block, Fact)]
    assert [("server_error", 1)] == said(report, serving_phrases.failed_kind)
    assert {(2, 1, 0)} == {(each.good_calls, each.bad_calls, each.unknown_calls) for (each,) in said(report, serving_phrases.goodput)}
    assert 1 == len(said(report, serving_phrases.split)) == len(said(report, serving_phrases.few_values))


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("aiperf", ["Time to First Token (ms)", "adj_ Time to First Token (ms)", "Inter Chunk Latency (ms)"]),
        ("guidellm", ["TTFT (ms)", "TPOT (ms)"]),
        ("mlperf", ["tps_per_user"]),
        ("nat", ["TTFT (ms)", "Speedup"]),
        ("vllm-bench", ["Mean TTFT (ms)", "P99 ITL (ms)"]),
    ],
)
def test_show_as(run: Project, capsys: pytest.CaptureFixture[str], tool: str, words: list[str]) -> None:
    """Each tool's table uses the tool's names, and lists the differences."""
    assert 0 == main(["show", "--as", tool])

    said = capsys.readouterr().out
    assert [] == [word for word in words if word not in said]
    assert "\n- " in said


def test_faults_of_show(run: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown run or tool, and a run of another version, are errors of one sentence each."""
    directory = run.directory
    assert [4, 4] == [main(["show", "yesterday"]), main(["show", "--as", "vllm"])]
    errors = capsys.readouterr().err.splitlines()
    assert f"agentbench: no run 'yesterday'; known: {directory.name}, latest (in reports)" == errors[0]
    assert errors[1].startswith("agentbench: no tool 'vllm'; known: aiperf, guidellm, mlperf, nat, vllm-bench")

    old = run.run_json
    old["schema"] = "agentbench-run/1"
    (directory / "run.json").write_text(json.dumps(old))

    assert 4 == main(["show"])
    assert "has schema agentbench-run/1, but this version reads only agentbench-run/8; " in capsys.readouterr().err


def test_the_timing_quality_of_a_run(run: Project) -> None:
    """A run has a verdict on its timing quality with the evidence, and the serving section of its report begins with it."""
    stopwatch = run.run_json["stopwatch"]

    assert stopwatch["verdict"] in ("ok", "warn", "client-saturated")
    assert 0 <= stopwatch["clean_share"] <= 1
    assert 0 <= stopwatch["client_queue_ms"]
    report = report_of(run.directory)
    assert {(stopwatch["verdict"], stopwatch["clean_share"])} == {
        (each.verdict, each.clean_share) for (each,) in said(report, serving_phrases.timing)
    }
    assert 1 == len(said(report, serving_phrases.timing_evidence))
    assert bool(stopwatch["unusable"]) == any(reason.startswith("chunks arrive faster") for reason in stopwatch["reasons"])


def test_a_tool_that_the_agent_did_not_run(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` with an id names the tools in the requests, and a tool that the model asked for and the agent did not call. A message of a
    failed test that has several lines is one line in the table of failed tests.
    """
    project.suite(scenarios=1, agent={"kind": "./agent.py:run"})
    project.write(
        "scenarios/shop/agent.py",
        "async def run(scenario, llm, tools):\n    return (await llm.chat(scenario.messages, tools.schemas)).text or 'nothing'\n",
    )
    project.run("scenarios/shop")
    capsys.readouterr()

    assert [0, 0] == [main(["show", str(project.directory), *name]) for name in ([], ["shop-0"])]

    shown = capsys.readouterr().out
    assert "offered     find_item, order_item, return_item" in shown
    assert "not run     find_item: the model asked for it 1 more time than the agent called it with tools.call" in shown
    assert re.search(r"::test_tools\[shop-0\] +assert 0.000 >= 0.5 .*missing: find_item", shown)
    assert "\\n" not in shown


@pytest.mark.slow
def test_show_profile(run: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """`--profile` shows where the time of a run went: slowest calls, the call tree, concurrency, and common prompt prefixes."""
    assert 0 == main(["show", "--profile"])

    said = capsys.readouterr().out
    sections = ("Slowest LLM calls", "Call tree", "Concurrency spikes", "Common prompt prefixes")
    assert [*sections] == [line for line in said.splitlines() if line in sections]
    assert re.search(r"shop\[shop-2\] +failed: ", said)
    assert re.search(r"^shop +3 ", said, re.MULTILINE)
    assert re.search(r"^A perfect prefix cache would contain [\d,]+ \(\d+\.\d %\) of [\d,]+ prompt tokens of 2 calls:$", said, re.MULTILINE)
    assert re.search(r"^The server reports [\d,]+ \(\d+\.\d %\) of [\d,]+ as cached\.$", said, re.MULTILINE)


@pytest.mark.slow
def test_profile_and_as_exclude_each_other(run: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """`--profile` and `--as` cannot be combined."""
    with pytest.raises(SystemExit) as ended:
        main(["show", "--profile", "--as", "nat"])

    assert 4 == ended.value.code
    assert "not allowed with argument" in capsys.readouterr().err
