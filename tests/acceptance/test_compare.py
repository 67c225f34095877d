"""`agentbench compare` on two real runs that differ in one setting or in none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.gate.run_pair import read, setup_changes
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.records import Json
from pytest_agentbench.reports.comparison_phrases import same_scores
from pytest_agentbench.runs.identity import PARTS
from pytest_agentbench.runs.provenance import Git, Hardware, ModelIdentity, ModelUse
from tests.findings import report_of, texts
from tests.project import FIND_THEN_ANSWER, Project
from tests.small_stacks import PASSES, own_folder, stack
from tests.web import QuietHandler, serving

Capture = pytest.CaptureFixture[str]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # several sessions in one test

TWO_TOOLS: list[Json] = [
    {
        "match": {"turn": 0, "contains": "shop-1"},
        "tool_calls": [{"name": "find_item", "arguments": {"item": "lamp"}}, {"name": "order_item", "arguments": {"item": "lamp"}}],
    },
    *FIND_THEN_ANSWER,
]


@pytest.fixture
def shop(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project under git with a suite of three scenarios."""
    project.suite()
    monkeypatch.chdir(project.root)
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"]
    for command in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "--message", "Start")):
        subprocess.run(["git", *command], cwd=project.root, check=True)
    return project


def ran(project: Project, *options: str) -> Path:
    project.run("scenarios/shop", *options)
    return project.directory


def differing(old: Path, new: Path) -> list[tuple[str, str]]:
    return [(each.part, each.path) for each in setup_changes(read(old), read(new))]


def test_one_thing_at_a_time(shop: Project) -> None:
    """Two equal runs have no differences. If one setting is changed, only that setting is named."""
    first = ran(shop)

    assert [] == differing(first, ran(shop))
    assert [("agent", "shop.temperature")] == differing(first, ran(shop, "--agentbench-set", "agent.temperature=0.5"))
    assert [("options", "concurrency")] == differing(first, ran(shop, "--agentbench-concurrency", "3"))
    assert [("options", "suites.shop.trials")] == differing(first, ran(shop, "--agentbench-trials", "2"))
    assert [("backend", "spec.seed")] == differing(first, ran(shop, "--agentbench-set", "backend.seed=3"))
    assert [("agent", "shop.system_prompt"), ("prompts", "shop.system_prompt")] == sorted(
        differing(first, ran(shop, "--agentbench-set", "agent.system_prompt=Help."))
    )


def test_other_files(shop: Project) -> None:
    """A changed description of a tool changes data, tools and code. A changed script of the engine changes backend and code."""
    first = ran(shop)
    shop.backend(TWO_TOOLS)
    other_backend = ran(shop)
    file = shop.root / "scenarios/shop/data.json"
    file.write_text(file.read_text().replace("Orders an item.", "Orders one."))
    other_tools = ran(shop)

    code = [("code", "dirty"), ("code", "diff")]
    assert [*code, ("backend", "spec.script")] == differing(first, other_backend)
    assert [("code", "diff"), ("data", "shop.sha256"), ("tools", "shop")] == differing(other_backend, other_tools)


def test_the_identity_is_complete(shop: Project) -> None:
    """The identity has all parts, each with a hash. Hardware without a GPU is recorded as such, and the commit is the current one."""
    identity = read(ran(shop)).identity

    assert identity is not None
    assert [*PARTS, "hashes"] == [*plain(identity)]
    assert [*PARTS] == [*identity.hashes]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=shop.root, check=True, capture_output=True, text=True).stdout.strip()
    assert Git(head, dirty=False, diff=None) == identity.code
    assert Hardware((), None) == identity.hardware
    assert {rollout.content["backend"] for rollout in shop.rollouts} == {identity.backend.hash}


def test_the_printed_comparison(shop: Project, capsys: Capture) -> None:
    """The command prints the setup, each score with its difference, speeds, differing scenarios, and how to read the numbers."""
    old = ran(shop)
    shop.backend(TWO_TOOLS)
    ran(shop, "--agentbench-concurrency", "2")

    assert 0 == main(["compare", old.name, "latest"])

    printed = capsys.readouterr().out.splitlines()
    wanted = [
        old.name,
        "Setup",
        "code        dirty: false -> true",
        "backend     spec.script: ",
        "options     concurrency: 8 -> 2",
        "the same    packages, model, hardware, ",
        "shop",
        "rollouts ",
        "tsq  ",
        f"  vs {old.name}",
        "Speed, ms",
        "TTFT p50 ",
        "rollouts/h ",
        "shop: scenarios that differ (1), tsq and how many trials passed",
        "shop-1 ",
        "How to read it",
        "- speeds of ",
    ]
    lines = iter(printed)
    assert [] == [start for start in wanted if not any(line.startswith(start) for line in lines)], "\n".join(printed)
    assert "different numbers of rollouts in flight: 8 and 2" in " ".join(" ".join(printed).split())
    cells = {line.split()[0]: line.split()[1:] for line in printed if line.startswith(("shop-1 ", "tsq "))}
    assert {"tsq": ["1.000", "0.889"], "shop-1": ["1.000", "1/1", "0.667", "1/1"]} == cells


def test_equal_runs_are_said_to_be_equal(shop: Project, capsys: Capture) -> None:
    """For two equal runs the command says that setup and scores are the same. The runs may be named by their directories."""
    old, new = ran(shop), ran(shop)

    assert 0 == main(["compare", str(old), str(new)])

    printed = capsys.readouterr().out.splitlines()
    assert "the same    everything" in printed
    assert f"- {same_scores('shop', ['tsq'])}" in printed


def test_a_missing_run(shop: Project, capsys: Capture) -> None:
    """An unknown run is an error that names the known runs."""
    old = ran(shop)

    assert 4 == main(["compare", old.name, "20000101-000000"])

    assert f"no run '20000101-000000'; known: {old.name}" in capsys.readouterr().err


def test_identity_and_environment_agree(shop: Project) -> None:
    """In run.json, identity and environment have the same commit and packages."""
    run = json.loads((ran(shop) / "run.json").read_text())

    assert run["environment"]["git"] == run["identity"]["code"]
    assert run["environment"]["packages"] == run["identity"]["packages"]


def test_the_identity_of_a_stack(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity contains what the stack's start revealed about services, server, weights and GPUs."""
    stack(project)
    project.suite(test=PASSES)
    with own_folder(monkeypatch):
        project.run("scenarios/shop", "--agentbench-backend=small").assert_outcomes(passed=3)

    identity = read(project.directory).identity
    assert identity is not None
    assert ["engine"] == [*(identity.backend.services or ())]
    assert {"version": None, "owned_by": None} == identity.backend.server
    assert ModelIdentity("tiny", None, None) == identity.model
    assert Hardware((), None) == identity.hardware
    assert identity.options.warm is False


class Obliging(QuietHandler):
    """A server that lists one model, and answers with it whatever model is requested."""

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
        self._answer({"model": "small", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})

    def _answer(self, body: Json) -> None:
        self.answer(200, json.dumps(body).encode())


@pytest.fixture
def obliging() -> Iterator[str]:
    """The URL of a server that answers with its only model."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Obliging)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"


def test_a_model_that_the_backend_does_not_list(shop: Project, obliging: str, capsys: Capture) -> None:
    """If a requested model is not listed by the backend, a warning is printed and the run goes on.

    Reports, identity and `compare` name the requested and the answering model.
    """
    first = ran(shop, f"--agentbench-backend={obliging}")
    shop.suite(variants={"big": {"agent": {"model": "big"}}})
    result = shop.run("scenarios/shop", f"--agentbench-backend={obliging}", "--agentbench-variants=all")
    old, new, report = read(first), read(shop.directory), (shop.directory / "report.md").read_text()
    sentence = "shop-big requests the model 'big', which the backend does not list (small); its calls request it anyway"
    asked = "big (answered by small), small"

    lines = result.stdout.str().splitlines()
    (again,) = [number for number, line in enumerate(lines) if line.startswith("model       shop-big requests the model 'big', which ")]
    assert lines.index(f"agentbench: {sentence}") < again
    assert old.identity is not None and new.identity is not None
    assert "small" == old.facts.backend.served_model == old.identity.model.name
    assert asked == new.facts.backend.served_model == new.identity.model.name
    assert ((), (sentence,)) == (old.facts.backend.warnings, new.facts.backend.warnings)
    assert (ModelUse("big", "small", 3), ModelUse("small", "small", 3)) == new.facts.backend.models
    assert f"model `{asked}`" in report
    assert sentence in texts(report_of(shop.directory))
    assert 0 == main(["compare", str(first), str(shop.directory)])
    told = capsys.readouterr().out.splitlines()
    assert f"model       name: small -> {asked} ({shop.directory.resolve().name})" in " ".join(told)
    assert not any(line.startswith("the same") and "model" in line for line in told)
