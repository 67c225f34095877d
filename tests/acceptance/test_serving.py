"""Reports about the server's own metrics in a session."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.reports.document import Level, plain
from tests.engines import engine
from tests.findings import facts, report_of, said, texts
from tests.project import FIND_THEN_ANSWER, WAYS, Project

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an engine that is already running."""
    with engine(tmp_path_factory.mktemp("server"), FIND_THEN_ANSWER, model="small") as url:
        yield url


def of_tokens(serving: Json) -> list[str]:
    """Returns the disagreements about tokens.

    Times may differ on a busy machine, because the tap waits longer for a token than the engine does.
    """
    return [each for each in serving["disagreements"] if "tokens" in each]


def test_the_server_counts_what_the_tap_does(project: Project) -> None:
    """The engine's own counts are in the run and agree with the tap's. They include tests' own calls."""
    by_hand = "async def test_by_hand(llm): await llm.chat([{'role': 'user', 'content': 'Hello'}])\n"
    project.suite(scenarios=4, test=f"def test_tools(rollout): pass\n\n{by_hand}")

    result = project.run("scenarios/shop", "-o", "asyncio_mode=auto")

    result.assert_outcomes(passed=5)
    serving = project.run_json["serving"]
    usage = [call for rollout in project.rollouts for call in rollout.calls]
    assert (
        "vllm",
        sum(call.prompt_tokens or 0 for call in usage),
        sum(call.completion_tokens or 0 for call in usage),
        len(usage),
    ) == tuple(serving["server"][name] for name in ("kind", "prompt_tokens", "output_tokens", "first_tokens"))
    assert ([], []) == (of_tokens(serving), serving["notes"])
    assert serving["looks"] >= 2
    [(told,)] = said(report_of(project.directory, Level.FULL), serving_phrases.server_cache)
    assert "vllm:prefix_cache_hits_total" == told.prefix_cache.source
    assert 0 <= told.prefix_cache.hit_ratio <= 1
    assert (project.directory / "samples.jsonl").is_file()


@pytest.mark.slow
def test_load(project: Project) -> None:
    """Running and waiting requests are sampled during the calls."""
    rules = [{**FIND_THEN_ANSWER[0], "ttft_ms": 2500}, FIND_THEN_ANSWER[1]]
    project.backend(rules, max_concurrency=2)
    project.suite(scenarios=4)

    project.run("scenarios/shop")

    [(told,)] = said(report_of(project.directory, Level.FULL), serving_phrases.server_load)
    assert (2, 2) == (told.running.max, told.waiting.max)
    assert None not in (told.kv_usage.max, told.running.mean, told.waiting.mean)
    assert 3 <= project.run_json["serving"]["rounds"] < project.run_json["serving"]["looks"]


@pytest.mark.slow
def test_a_server_that_is_already_running(project: Project, server: str) -> None:
    """The metrics address comes from the backend's YAML. A server without metrics is not an error."""
    project.suite()
    project.write("backends/mine.yaml", json.dumps({"kind": "url", "url": f"{server}/v1", "metrics": f"{server}/metrics"}))

    project.run("scenarios/shop", "--agentbench-backend=mine").assert_outcomes(passed=3)
    told = project.run_json["serving"]
    project.run("scenarios/shop", f"--agentbench-backend={server}/v1").assert_outcomes(passed=3)

    assert (6, []) == (told["server"]["first_tokens"], of_tokens(told))
    assert project.run_json["serving"] is None
    assert not (project.directory / "samples.jsonl").exists()


@pytest.mark.slow
def test_another_client_of_the_server(project: Project, server: str) -> None:
    """Calls of another client during the run are reported, and so is a metrics address that does not answer. Neither fails a test."""
    project.suite(
        test=f"""
import json, urllib.request

def test_tools(rollout):
    body = json.dumps({{"model": "small", "messages": [{{"role": "user", "content": "many words " * 500}}]}}).encode()
    urllib.request.urlopen(urllib.request.Request("{server}/v1/chat/completions", body)).close()
"""
    )
    metrics = [f"{server}/metrics", "http://127.0.0.1:9/metrics"]
    project.write("backends/mine.yaml", json.dumps({"kind": "url", "url": f"{server}/v1", "metrics": metrics}))

    project.run("scenarios/shop", "--agentbench-backend=mine").assert_outcomes(passed=3)

    report, serving = report_of(project.directory, Level.FULL), project.run_json["serving"]
    assert any("prompt tokens" in each and each.endswith(": another client used the server, too") for each in serving["disagreements"])
    assert list(serving["disagreements"]) == [fact.content for fact in facts(report, "differs")]
    [note] = serving["notes"]
    assert note.startswith("server[1]: ") and note.endswith(" failed, including the last: [Errno 111] Connection refused")
    assert [note] == [fact.content for fact in facts(report, "sampling")]


@pytest.mark.slow
@WAYS
def test_an_interrupted_session(project: Project, way: tuple[str, ...]) -> None:
    """Calls of rollouts that were cancelled under -x are in no record, but the server counted them.

    The report does not blame another client.
    """
    refusing = {"match": {"contains": "shop-0"}, "text": "No.", "ttft_ms": 1500}
    never = {"text": "Here is what was found for you.", "ttft_ms": 600_000}
    project.backend([refusing, {**FIND_THEN_ANSWER[0]}, never])
    project.suite(scenarios=6)

    result = project.run(*way, "-x", "--agentbench-concurrency=6", "scenarios/shop")

    assert 1 == result.parseoutcomes()["failed"]
    assert ["shop-0"] == [rollout.scenario for rollout in project.rollouts]
    assert [] == of_tokens(project.run_json["serving"])
    assert [] == [each for each in map(plain, texts(report_of(project.directory))) if "somebody else" in each]


@pytest.mark.slow
def test_a_full_disk(project: Project) -> None:
    """If samples cannot be written, a note says so, and nothing else is lost."""
    project.suite()
    project.write("conftest.py", "from pytest_agentbench.session import processes\n\nprocesses.SAMPLES = '/dev/full'\n")

    project.run("scenarios/shop").assert_outcomes(passed=3)

    [note] = project.run_json["serving"]["notes"]
    assert note.startswith("full: ") and note.endswith(" lines are lost: No space left on device")
    assert [note] == [fact.content for fact in facts(report_of(project.directory, Level.FULL), "sampling")]
