"""Requirements of planned sessions are reported before the first one starts: questions, retriever, roles, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from pytest_agentbench.cli import main
from tests.project import Project
from tests.web import QuietHandler, serving

EXPERT = {"url": "http://127.0.0.1:9/v1", "model": "large", "api_key": "EXPERTS_KEY"}
ROLES = {"search": {}, "reasoner": EXPERT, "answer": {}}


class Health(QuietHandler):
    """The health check of a ToolOrchestra retriever. It serves no documents."""

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, b'{"status": "ok"}')


@pytest.fixture
def retriever() -> Iterator[str]:
    """The URL of a retriever that is healthy."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Health)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def planned(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns a function that makes a dry run and returns its lines after those of the cells."""
    monkeypatch.chdir(project.root)

    def plan(*words: str) -> list[str]:
        said = ["reproduce", "hle-throughput", "--suite=scenarios/shop", "--concurrency=2", "--dry-run", *words]
        assert 0 == main(said if any(word.startswith("--methods") for word in words) else [*said[:2], "--methods=embedded", *said[2:]])
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines[1:] if ": pytest " not in line]

    return plan


def orchestrated(project: Project, **keys: Any) -> None:
    """Creates the suite shop with an orchestrator that runs no code."""
    agent = {"kind": "orchestrator", "run_code": False, **keys.pop("agent", {})}
    project.suite(agent=agent, **keys)


def test_nothing_is_missing(project: Project, planned: Any) -> None:
    """A dry run prints the number of questions, that there is no retriever, and the endpoint of each role."""
    orchestrated(project, roles={"reasoner": {}, "answer": {}}, scenarios=3)

    assert [
        "questions: all 3 of data (data.json)",
        "retriever: none in the agent's settings, so the agent has no tool `search`",
        "role answer: the backend under test",
        "role reasoner: the backend under test",
        "nothing is missing",
    ] == planned()


def test_an_agent_without_requirements(project: Project, planned: Any) -> None:
    """For an agent without retriever and roles, neither is mentioned."""
    project.suite(scenarios=2)

    assert ["questions: all 2 of data (data.json)", "nothing is missing"] == planned()


def test_the_shipped_sample(project: Project, planned: Any) -> None:
    """The suite `hle` has twelve questions, which are too few for a concurrency of 48. Its scorer needs a judge."""
    project.shipped("hle")
    said = planned("--suite=scenarios/hle", "--concurrency=24,48")

    assert "questions: all 12 of agentbench sample in the format of HLE (hand-written) (sample.jsonl)" == said[0]
    assert "role judge: the backend under test" in said
    assert [
        "missing:",
        (
            "  questions: 12 rollouts are fewer than the concurrency of 48; "
            "select more questions, or run each several times: -- --agentbench-trials=4"
        ),
    ] == said[-2:]


@pytest.mark.parametrize(
    ("options", "questions"),
    [
        (("--agentbench-limit=2",), "2 of 4 of data (data.json)"),
        (("--agentbench-limit", "9", "--agentbench-trials=3"), "all 4 of data (data.json), 3 times each"),
        (("--agentbench-set=dataset.name=exam", "-k", "lamp"), "all 4 of exam (data.json); only those that pytest selects by -k lamp"),
    ],
)
def test_selected_questions(project: Project, planned: Any, options: tuple[str, ...], questions: str) -> None:
    """Options after `--` select questions. Options that only pytest understands are repeated in the output."""
    project.suite(scenarios=4)

    assert f"questions: {questions}" == planned("--", *options)[0]


def test_a_variant_with_a_limit(project: Project, planned: Any) -> None:
    """A variant's `limit` applies to the questions. An unknown variant is reported as missing."""
    project.suite(scenarios=4, variants={"few": {"limit": 3}})

    assert "questions: 3 of 4 of data (data.json)" == planned("--variant=few")[0]
    assert "  scenarios/shop: no variant 'many'; known: default, few" == planned("--variant=many")[-1]


def test_a_retriever(project: Project, planned: Any, retriever: str) -> None:
    """The retriever is requested. If it does not answer, or is another server, it is reported as missing."""
    heard = {}
    for url in (retriever, "http://127.0.0.1:9", f"{retriever}/other"):
        orchestrated(project, agent={"retriever": url}, roles={**ROLES, "reasoner": {}}, scenarios=2)
        heard[url] = planned()

    assert [f"retriever: {retriever} answers", "nothing is missing"] == [heard[retriever][1], heard[retriever][-1]]
    away, other = heard["http://127.0.0.1:9"], heard[f"{retriever}/other"]
    assert "retriever: http://127.0.0.1:9 does not answer" == away[1]
    assert "  retriever: http://127.0.0.1:9 does not answer; start it, or correct `retriever` of the agent" == away[-1]
    assert f"retriever: {retriever}/other answers 404 Not Found" in other[1]
    assert "missing:" == other[-2]


def test_a_retriever_that_the_stack_starts(project: Project, planned: Any) -> None:
    """If a service of the backend uses the retriever's port, the retriever is not reported as missing."""
    orchestrated(project, agent={"retriever": "http://127.0.0.1:14010"}, roles={**ROLES, "reasoner": {}}, scenarios=2)
    services = {"near": {"run": ["true"], "port": 14010}, "engine": {"run": ["true"]}}
    project.write("backends/whole.yaml", json.dumps({"model": "m", "services": services}))
    said = planned("--methods=whole")

    assert "retriever: http://127.0.0.1:14010 is a service of the backend" in said
    assert [] == [line for line in said if "does not answer" in line]


def test_keys_of_roles(project: Project, planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model, URL and key name of each role are printed. A key that is not set is missing, and its value is never printed."""
    monkeypatch.delenv("EXPERTS_KEY", raising=False)
    orchestrated(
        project, roles={**ROLES, "answer": {"model": "small"}}, judge=EXPERT, scorers=["judged_answer"], thresholds={}, scenarios=2
    )
    without = planned()
    monkeypatch.setenv("EXPERTS_KEY", "secret-of-the-experts")
    having = planned()

    role = "large at http://127.0.0.1:9/v1, the key EXPERTS_KEY is"
    assert [f"role reasoner: {role} not set", f"role judge: {role} not set"] == without[3:5]
    assert [f"role reasoner: {role} set", f"role judge: {role} set", "nothing is missing"] == having[3:6]
    assert "role answer: small at the backend under test" == having[2]
    why = "http://127.0.0.1:9/v1 needs an API key: the environment variable EXPERTS_KEY is not set"
    assert ["missing:", f"  role reasoner: {why}", f"  role judge: {why}"] == without[5:]
    assert "secret" not in "".join(having)


def test_roles_in_a_backends_yaml(project: Project, planned: Any) -> None:
    """Roles in a backend's YAML override the suite's. Roles that differ between methods are printed for each method."""
    orchestrated(project, roles={"answer": {}}, scenarios=2)
    project.backend(name="wise", roles={"reasoner": {"url": "http://127.0.0.1:9/v1", "model": "wise"}})
    said = planned("--methods=plain=embedded,wise")

    assert [
        "role answer: the backend under test",
        "role reasoner (plain): none",
        "role reasoner (wise): wise at http://127.0.0.1:9/v1",
    ] == [line for line in said if line.startswith("role ")]
    assert said[-1].startswith(
        "  role reasoner (plain): no endpoint is configured for it; add it to `roles` in suite.yaml or in the YAML of backend 'embedded'"
    )


def test_code_of_the_suite_is_not_loaded(project: Project, planned: Any) -> None:
    """The suite's own agent is not loaded, so its roles and retriever are unknown before it runs."""
    project.suite(agent={"kind": "./mine.py:run"}, scenarios=2)
    project.write("scenarios/shop/mine.py", "raise SystemExit('it was loaded')")

    assert "agent: ./mine.py:run is code of the suite; the retriever and roles that it needs are known only when it runs" == planned()[1]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["--", "--agentbench-limit=x"], "--agentbench-limit x: must be "),
        (["--suite=scenarios/nothing"], "there is no suite in scenarios/nothing"),
        (["--", "--agentbench-set=dataset.file=away.json"], "away.json"),
    ],
)
def test_unreadable_options_are_missing(project: Project, planned: Any, words: list[str], missing: str) -> None:
    """The error about an invalid option is listed as missing."""
    project.suite(scenarios=2)
    said = planned(*words)

    assert "missing:" == said[-2]
    assert missing in said[-1]


def test_no_start_if_something_is_missing(project: Project, planned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --dry-run, the command is refused for the reason that a dry run reports."""
    orchestrated(project, agent={"retriever": "http://127.0.0.1:9"}, roles={**ROLES, "reasoner": {}}, scenarios=2)
    status = main(["reproduce", "hle-throughput", "--suite=scenarios/shop", "--methods=embedded", "--concurrency=2", "--output=out"])

    assert 0 != status
    assert "retriever: http://127.0.0.1:9 does not answer; start it" in capsys.readouterr().err
    assert not (project.root / "out").exists()
