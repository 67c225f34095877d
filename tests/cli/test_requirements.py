"""What planned sessions ask for, told before any of them begins: questions, retriever, roles, and what of it is missing."""

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
    """A retriever as ToolOrchestra has it, of which nobody wants a document."""

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, b'{"status": "ok"}')


@pytest.fixture
def retriever() -> Iterator[str]:
    """Its URL."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Health)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def planned(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Gives the lines of a dry run behind those of its cells."""
    monkeypatch.chdir(project.root)

    def plan(*words: str) -> list[str]:
        said = ["reproduce", "hle-throughput", "--suite=scenarios/shop", "--concurrency=2", "--dry-run", *words]
        assert 0 == main(said if any(word.startswith("--methods") for word in words) else [*said[:2], "--methods=embedded", *said[2:]])
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines[1:] if ": pytest " not in line]

    return plan


def orchestrated(project: Project, **keys: Any) -> None:
    """The shop with an orchestrator, who runs no code."""
    agent = {"kind": "orchestrator", "run_code": False, **keys.pop("agent", {})}
    project.suite(agent=agent, **keys)


def test_nothing_is_missing(project: Project, planned: Any) -> None:
    """It says how many questions there are, that there is no retriever, and whom each role asks."""
    orchestrated(project, roles={"reasoner": {}, "answer": {}}, scenarios=3)

    assert [
        "questions: all 3 of data (data.json)",
        "retriever: none in the agent's settings, so the agent has no tool `search`",
        "role answer: the backend under test",
        "role reasoner: the backend under test",
        "nothing is missing",
    ] == planned()


def test_an_agent_that_asks_nobody(project: Project, planned: Any) -> None:
    """Nothing is said of a retriever and of roles that nobody asks."""
    project.suite(scenarios=2)

    assert ["questions: all 2 of data (data.json)", "nothing is missing"] == planned()


def test_the_shipped_sample(project: Project, planned: Any) -> None:
    """Its twelve questions, too few for the paper's 48 in flight; its scorer asks a judge."""
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
def test_which_questions(project: Project, planned: Any, options: tuple[str, ...], questions: str) -> None:
    """Options behind `--` choose among them; what only pytest understands is repeated."""
    project.suite(scenarios=4)

    assert f"questions: {questions}" == planned("--", *options)[0]


def test_a_variant_takes_some(project: Project, planned: Any) -> None:
    """A variant with a `limit` takes so many; one that is not there is missing."""
    project.suite(scenarios=4, variants={"few": {"limit": 3}})

    assert "questions: 3 of 4 of data (data.json)" == planned("--variant=few")[0]
    assert "  scenarios/shop: no variant 'many'; known: default, few" == planned("--variant=many")[-1]


def test_a_retriever(project: Project, planned: Any, retriever: str) -> None:
    """It is asked whether it is there. One that is not, and one that is another server, are missing."""
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


def test_a_retriever_that_the_stack_boots(project: Project, planned: Any) -> None:
    """A service of the backend at that port is not there yet, and nothing is missing for that."""
    orchestrated(project, agent={"retriever": "http://127.0.0.1:14010"}, roles={**ROLES, "reasoner": {}}, scenarios=2)
    services = {"near": {"run": ["true"], "port": 14010}, "engine": {"run": ["true"]}}
    project.write("backends/whole.yaml", json.dumps({"model": "m", "services": services}))
    said = planned("--methods=whole")

    assert "retriever: http://127.0.0.1:14010 is a service of the backend" in said
    assert [] == [line for line in said if "does not answer" in line]


def test_keys_of_roles(project: Project, planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role's model, its URL and its key, which is missing where it is not set; its value is nowhere."""
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


def test_roles_that_a_backend_names(project: Project, planned: Any) -> None:
    """What a method's own YAML says goes before what the suite says; who differs is told for each method, and so is who is missing."""
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
    """Whom an agent of the suite's own asks is known when it runs."""
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
def test_what_cannot_be_read_is_missing(project: Project, planned: Any, words: list[str], missing: str) -> None:
    """The sentence of the mistake stands where what is missing stands."""
    project.suite(scenarios=2)
    said = planned(*words)

    assert "missing:" == said[-2]
    assert missing in said[-1]


def test_nothing_begins_without_it(project: Project, planned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The measurement itself is refused for what a dry run says is missing."""
    orchestrated(project, agent={"retriever": "http://127.0.0.1:9"}, roles={**ROLES, "reasoner": {}}, scenarios=2)
    status = main(["reproduce", "hle-throughput", "--suite=scenarios/shop", "--methods=embedded", "--concurrency=2", "--output=out"])

    assert 0 != status
    assert "retriever: http://127.0.0.1:9 does not answer; start it" in capsys.readouterr().err
    assert not (project.root / "out").exists()
