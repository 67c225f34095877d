"""Runs that are played from their recordings: equal scores, loud misses, and what they may not be used for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.lib.kept_values import FILE
from pytest_agentbench.records import Json, RolloutKey
from tests.project import Project

pytestmark = pytest.mark.slow

HLE = Path(__file__).parents[2] / "scenarios" / "hle"

BLACK_BOX = """
from openai import AsyncOpenAI

async def run(scenario, client: AsyncOpenAI, llm, tools, *, prompt: str = ""):
    messages = [*scenario.messages, *([{"role": "user", "content": prompt}] if prompt else [])]
    for turn in range(1, 4):
        answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=tools.schemas)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = await tools.call(call.function.name, call.function.arguments, turn)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
"""

#: Reads the answer as a stream of the SDK.
STREAMING = BLACK_BOX.replace("tools=tools.schemas)", "tools=tools.schemas, stream=True)").replace(
    "        message = answer.choices[0].message\n",
    """
        from openai.types.chat import ChatCompletionMessage
        content, calls = "", {}
        async for chunk in answer:
            for choice in chunk.choices:
                content += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                    call["id"] += piece.id or ""
                    call["function"]["name"] += piece.function.name or ""
                    call["function"]["arguments"] += piece.function.arguments or ""
        message = ChatCompletionMessage(role="assistant", content=content or None, tool_calls=[*calls.values()] or None)
""",
)


def results(project: Project) -> dict[RolloutKey, tuple[str, dict[str, float]]]:
    return {each.key: (each.status, dict(each.scores)) for each in project.rollouts}


def playback(project: Project) -> Json:
    found: Json = project.run_json["backend"]["recording"]
    return found


def play(project: Project, *arguments: str) -> pytest.RunResult:
    """Plays the newest run, and makes sure that every recorded call was asked for and has the recorded scores."""
    before, run = results(project), project.directory
    result = project.run(*arguments, f"--agentbench-backend=recorded:{run}")

    assert 0 == result.ret
    assert before == results(project)
    assert run != project.directory
    used = playback(project)
    assert (run.name, 0, 0) == (used["run"], used["missed"], used["unasked"])
    assert used["calls"] == used["played_calls"] == used["by_content"] > 0
    return result


@pytest.mark.parametrize("agent", ["tool_calling", "react", "self_evaluating"])
def test_banking(project: Project, agent: str) -> None:
    """Built-in agents get the recorded scores, and the headline says where the answers come from."""
    project.shipped("banking")
    arguments = ("scenarios/banking", "--agentbench-limit=5", f"--agentbench-agent={agent}", "--agentbench-threshold=tsq=0")
    project.run(*arguments)
    assert None is playback(project)

    result = play(project, *arguments)

    printed = " ".join(result.stdout.str().split())
    assert "verdict INCONCLUSIVE" in printed
    assert 1 == printed.count("answers from a recording, no model was called")
    assert "timings unreliable" not in printed
    for report in ("report.md", "report.html"):
        assert "answers from a recording, no model was called" in (project.directory / report).read_text()


@pytest.mark.parametrize(("backend", "variant"), [("scripted", "default"), ("orchestrated", "orchestrator")])
def test_hle(project: Project, backend: str, variant: str) -> None:
    """Judges and the roles of an orchestrator are played as well."""
    shutil.copytree(HLE, project.root / "scenarios/hle", ignore=shutil.ignore_patterns("__pycache__"))
    arguments = ("-m", "hle", f"--agentbench-variants={variant}")
    project.run(*arguments, f"--agentbench-backend=scenarios/hle/{backend}.yaml")

    play(project, *arguments)


@pytest.mark.parametrize("code", [BLACK_BOX, STREAMING], ids=["whole", "streaming"])
def test_black_box(project: Project, code: str) -> None:
    """An agent on the SDK of OpenAI is played, with streams or without. A changed prompt is a miss that names the message."""
    project.suite(agent={"kind": "./agent.py:run"})
    project.write("scenarios/shop/agent.py", code)
    project.run("scenarios/shop")
    play(project, "scenarios/shop")

    result = project.run(
        "scenarios/shop", f"--agentbench-backend=recorded:{project.directory}", "--agentbench-set=agent.prompt=Quick, please"
    )

    assert 6 == result.ret
    assert {"infra_error"} == {status for status, _ in results(project).values()}
    assert {1} == {each.attempt for each in project.rollouts}
    assert all("call 1 of shop[shop-" in each.reason and "it has 1 message, and this one 2" in each.reason for each in project.rollouts)


@pytest.fixture
def recorded(project: Project) -> Project:
    """A project with a run of six rollouts, called `before`."""
    project.suite(scenarios=6, agent={"kind": "tool_calling", "temperature": 0.0})
    project.good_run("before")
    return project


BEFORE = "--agentbench-backend=recorded:reports/before"


def test_misses(recorded: Project) -> None:
    """A changed temperature is an infra_error that is not tried again. The last lines count misses and calls not asked for."""
    result = recorded.run("scenarios/shop", BEFORE, "--agentbench-set=agent.temperature=0.5", "-q")

    assert 6 == result.ret
    assert {("infra_error", 1)} == {(each.status, each.attempt) for each in recorded.rollouts}
    assert {"not_recorded"} == {call.error_kind for each in recorded.rollouts for call in each.calls}
    used = playback(recorded)
    assert (0, len(recorded.rollouts)) == (used["by_content"], used["missed"])
    result.stdout.fnmatch_lines([f"agentbench: NOT MEASURED*0 requests answered, {used['missed']} not recorded*"])
    result.stdout.fnmatch_lines(["*'temperature' was 0.0, and is now 0.5; to record again, run `pytest *"])


def test_unasked(recorded: Project) -> None:
    """An agent that makes fewer calls than before leaves recorded calls, which are counted, and is scored as usual."""
    recorded.run("scenarios/shop", BEFORE, "--agentbench-set=agent.max_turns=1", "--agentbench-threshold=tsq=0")

    used = playback(recorded)
    assert (12, 6, 0, 6) == tuple(used[name] for name in ("played_calls", "by_content", "missed", "unasked"))


def test_never_a_trial(recorded: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No rule about quality or timing passes or fails, against a baseline or without, and such a run is refused as a baseline."""
    rules = ("tsq.mean >= 0.99 of run", "tsq.mean >= 0.1", "tsq.mean >= -0.5 vs baseline", "ttft.p50 <= 1ms", "rollouts_per_hour >= 1")
    recorded.run("scenarios/shop", BEFORE, "--agentbench-baseline=before", *(f"--agentbench-gate={rule}" for rule in rules))

    gate = recorded.run_json["gate"]
    assert ("INCONCLUSIVE", {"INCONCLUSIVE"}) == (gate["verdict"], {rule["verdict"] for rule in gate["rules"]})
    assert len(rules) <= len(gate["rules"])
    assert all("the answers come from a recording" in rule["reason"] for rule in gate["rules"])
    monkeypatch.chdir(recorded.root)
    assert 4 == main(["baseline", "promote"])
    assert "its answers come from a recording" in capsys.readouterr().err
    result = recorded.run("scenarios/shop", f"--agentbench-baseline={recorded.directory}")
    assert 4 == result.ret
    result.stderr.fnmatch_lines(["*cannot be a baseline: its answers come from a recording*"])


def test_rounds_of_trials(recorded: Project) -> None:
    """Rounds of trials are refused, because the answers would be the same in each of them."""
    result = recorded.run("scenarios/shop", BEFORE, "--agentbench-trials=auto", "--agentbench-gate=tsq.mean >= 0.5")

    assert 4 == result.ret
    result.stderr.fnmatch_lines(["ERROR: --agentbench-trials=auto: answers from a recording are the same in each round; *"])


def test_trimmed(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The single file plays as the run does, also where the run is not, and brings the thresholds of the run."""
    monkeypatch.chdir(recorded.root)
    assert 0 == main(["cassette", "trim", "before", "--output", "shop.cassette"])
    shutil.rmtree(recorded.root / "reports" / "before")

    result = recorded.run("scenarios/shop", "--agentbench-backend=recorded:shop.cassette")

    assert 0 == result.ret
    assert (12, 0, 0) == tuple(playback(recorded)[name] for name in ("by_content", "missed", "unasked"))
    assert {"tsq": 0.5} == recorded.run_json["suites"]["shop"]["thresholds"]
    assert len((recorded.root / "shop.cassette").read_bytes()) < 20_000


def test_secrets(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt with a secret is found by its place on a machine that lacks the secret."""
    project.suite(agent={"kind": "./agent.py:run"})
    project.write("scenarios/shop/agent.py", BLACK_BOX.replace('prompt: str = ""', 'prompt: str = __import__("os").environ["SHOP_TOKEN"]'))
    monkeypatch.setenv("SHOP_TOKEN", "abc-123-of-recording")
    project.run("scenarios/shop")
    before = results(project)
    assert "abc-123-of-recording" not in (project.directory / FILE).read_text()
    monkeypatch.setenv("SHOP_TOKEN", "xyz-789-of-ci")

    project.run("scenarios/shop", f"--agentbench-backend=recorded:{project.directory}")

    assert before == results(project)
    assert (0, 0) == (playback(project)["missed"], playback(project)["unasked"])


def test_no_other_machine(project: Project) -> None:
    """A judge for which the suite names another server is played from the recording, and that server is never asked."""
    shutil.copytree(HLE, project.root / "scenarios/hle", ignore=shutil.ignore_patterns("__pycache__"))
    project.run("-m", "hle", "--agentbench-backend=scenarios/hle/scripted.yaml")
    suite = project.root / "scenarios/hle/suite.yaml"
    model = project.run_json["backend"]["served_model"]
    suite.write_text(f"{suite.read_text()}judge: {{url: 'http://127.0.0.1:9/v1', model: {model}, api_key: NOT_IN_THE_ENVIRONMENT}}\n")

    play(project, "-m", "hle")

    assert {""} == {call.endpoint for each in project.rollouts for call in each.other_calls}
