"""Checks of retrievers: in a service of a stack, in a file with settings, and in the agents of a suite."""

from __future__ import annotations

import json
import socket
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.backends.doctor import checks
from pytest_agentbench.backends.doctor.check import Check
from pytest_agentbench.backends.doctor.data_files import file_checks
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.cli import main
from pytest_agentbench.retriever.index import DOCUMENTS, INDEX
from tests.project import Project

pytestmark = pytest.mark.timeout(120)

Write = Callable[..., Path]


@pytest.fixture
def listening() -> Iterator[int]:
    """A port on which a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def settings(tmp_path: Path, listening: int, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Returns a function that writes complete settings of a retriever, with the given changes."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("INDEX_DIR", "TAVILY_API_KEY", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "index").mkdir()
    for name in (INDEX, DOCUMENTS):
        (tmp_path / "index" / name).write_text("something")

    def write(**changes: Any) -> Path:
        data = {"index_dir": "index", "embeddings": {"url": f"http://127.0.0.1:{listening}/v1", "model": "m"}, **changes}
        file = tmp_path / "retriever.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    return write


def made(folder: Path, services: dict[str, Any], **keys: Any) -> StackKind:
    """Returns a stack with these services whose YAML is in a folder."""
    return StackKind(**{"name": "mine", "here": str(folder), "services": services, **keys})


def lacking(found: Iterator[Check]) -> list[tuple[str, str, str]]:
    """Returns (name, detail, fix) of each check that is not ok."""
    return [(check.name, check.detail, check.fix) for check in found if check.state != "ok"]


def test_nothing_is_missing(settings: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench doctor` accepts the file like that of a backend."""
    pytest.importorskip("faiss", reason="NOT TESTED: the extra `retriever` is not installed: pip install 'pytest-agentbench[retriever]'")

    assert 0 == main(["doctor", str(settings())])

    out = capsys.readouterr().out
    assert ["packages", "index", "server"] == [line.split()[1] for line in out.splitlines() if line.startswith("  ✓")]
    assert out.endswith("nothing is missing for: " + str(settings()) + "\n")


def test_files(settings: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index, the lists of questions and the model are checked at the paths in the settings, also with a variable in them."""
    (tmp_path / "index" / INDEX).unlink()
    without = settings(allowed="lists.json", embeddings={"model": "./model"})
    (tmp_path / "hf" / "config.json").parent.mkdir()
    (tmp_path / "hf" / "config.json").touch()
    found = {name: (detail, fix) for name, detail, fix in lacking(file_checks(without))}
    monkeypatch.setenv("INDEX_DIR", str(tmp_path / "other"))
    by_variable = settings(index_dir="$INDEX_DIR", embeddings={"model": "../" + tmp_path.name + "/hf"})
    named = {name: detail for name, detail, _ in lacking(file_checks(by_variable))}
    monkeypatch.delenv("INDEX_DIR")
    unset = {name: (detail, fix) for name, detail, fix in lacking(file_checks(by_variable))}

    build = f"agentbench retriever build CORPUS.jsonl --output {tmp_path / 'index'} --model {tmp_path / 'model'}"
    assert (f"{tmp_path / 'index' / INDEX} does not exist", build) == found["index"]
    assert f"{tmp_path / 'lists.json'} does not exist" == found["lists"][0]
    assert f"{tmp_path / 'model'} has neither modules.json nor config.json" == found["weights"][0]
    assert f"{tmp_path / 'other' / INDEX} does not exist" == named["index"]
    assert "weights" not in named
    why = "retriever config: index_dir is $INDEX_DIR, but the environment variable INDEX_DIR is not set"
    assert (why, "export INDEX_DIR=...") == unset["index"]


def test_keys_ports_and_servers(settings: Write, listening: int) -> None:
    """Each missing thing has a fix. A missing key of the web search is `unknown`, not `missing`."""
    embeddings = {"url": "http://127.0.0.1:9/v1", "model": "m", "api_key": "NO_SUCH_KEY"}
    found = {check.name: check for check in file_checks(settings(embeddings=embeddings, tavily={}, port=listening))}

    assert ("missing", "export NO_SUCH_KEY=...") == (found["key"].state, found["key"].fix)
    assert ("missing", "no server answers at 127.0.0.1:9: Connection refused") == (found["server"].state, found["server"].detail)
    assert ("unknown", "export TAVILY_API_KEY=...") == (found["web search"].state, found["web search"].fix)
    assert "missing" == found[f"port {listening}"].state


def test_packages(settings: Write, tmp_path: Path) -> None:
    """Packages are checked in the interpreter of the settings. The fix for missing ones is an environment."""
    venv.create(tmp_path / "bare")
    bare, absent = [lacking(file_checks(settings(python=name)))[0] for name in ("./bare", "retriever")]

    assert ("packages", "aiohttp, orjson, pydantic, faiss not in ./bare", "`python: retriever-cpu`") == bare
    assert "agentbench env create retriever-cpu, and `python: retriever-cpu`" == absent[2]
    assert "the environment 'retriever' does not exist" in absent[1]


def test_gpus(settings: Write) -> None:
    """With `gpu`, the number of GPUs that FAISS sees is checked. Its build for CPUs sees none."""
    pytest.importorskip("faiss", reason="NOT TESTED: the extra `retriever` is not installed: pip install 'pytest-agentbench[retriever]'")

    assert [("GPUs", "FAISS in agentbench finds no GPU")] == [each[:2] for each in lacking(file_checks(settings(gpu=True)))]


def test_a_service_of_a_stack(settings: Write, tmp_path: Path) -> None:
    """The service's JSON is read with its templates expanded. What the stack itself starts is not checked."""
    config = {"index_dir": "{here}/{index}", "port": "{port}", "embeddings": {"url": "{engine.url}/v1", "model": "m"}}
    line = json.dumps(config).replace('"{port}"', "{port}")
    services = {
        "engine": {"run": [sys.executable]},
        "retriever": {"run": ["python", "-m", "pytest_agentbench.retriever", line], "python": "agentbench", "port": 0},
    }
    bad = {"r": {"run": ["python", "-m", "pytest_agentbench.retriever", '{"gpus": 1}']}}
    stack, wrong = made(tmp_path, services, settings={"index": "elsewhere"}), made(tmp_path, bad)

    assert [f"{tmp_path}/elsewhere/{INDEX} does not exist"] == [
        detail for name, detail, _ in lacking(iter(checks(stack))) if name != "packages"
    ]
    assert "services.r: retriever config: unknown key 'gpus'" in next(each.detail for each in checks(wrong) if each.name == "retriever")


def test_agents_of_a_suite(project: Project, listening: int, capsys: pytest.CaptureFixture[str]) -> None:
    """For the folder of a suite, each retriever that its agents use is checked once."""
    agents = {"near": f"http://127.0.0.1:{listening}", "far": "http://127.0.0.1:9", "also": "http://127.0.0.1:9"}
    variants = {name: {"agent": {"kind": "orchestrator", "retriever": url}} for name, url in agents.items()}
    project.suite(variants=variants)

    assert 1 == main(["doctor", str(project.root / "scenarios/shop")])

    out = capsys.readouterr().out
    assert f"✓ retriever         of near: a server listens at 127.0.0.1:{listening}" in out
    assert "✗ retriever         of far, also: no server answers at 127.0.0.1:9" in out
