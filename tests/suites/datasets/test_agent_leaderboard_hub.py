"""The download of agent-leaderboard: conversion of literal rows, and a real client with a hub on loopback or without one."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.agent_leaderboard import load
from pytest_agentbench.suites.datasets.agent_leaderboard_hub import (
    COLUMNS,
    REPOSITORY,
    REVISION,
    documents,
    download,
    entry,
    parquet_files,
    write,
)
from tests.hub import COMMIT, Hub, hub_client
from tests.web import serving

needs_hub = pytest.mark.skipif(
    not (importlib.util.find_spec("huggingface_hub") and importlib.util.find_spec("pyarrow")),
    reason="NOT TESTED: the extra `hub` is not installed: pip install 'pytest-agentbench[hub]'",
)


def _tool(title: str, **columns: Any) -> Json:
    return {
        "description": "Move money between accounts.",
        "properties": json.dumps({"to": {"type": "string", "description": "Who gets it", "title": "To"}}),
        "required": ["to"],
        "title": title,
        "type": "object",
        "response_schema": json.dumps({"type": "object", "properties": {"done": {"type": "boolean"}}}),
        **columns,
    }


def _rows() -> dict[str, list[Json]]:
    """Returns the three configs of a domain, in the columns of the source."""
    return {
        "tools": [_tool("transfer_funds"), _tool("get_rates", description="Retrieves currency rates.")],
        "personas": [{"name": "Zoë", "age": 30}, {"name": "Max", "age": 50}],
        "adaptive_tool_use": [
            {"persona_index": 1, "first_message": "Hi", "user_goals": ["Transfer $5", "Get rates"]},
            {"persona_index": 7, "first_message": "Hello", "user_goals": []},
        ],
    }


def test_an_entry() -> None:
    """A row becomes an entry with the name of its persona, all tools, heuristic labels and the source of these labels."""
    rows = _rows()
    written = documents({"banking": rows})["agent_leaderboard_v2_banking.json"][0]
    tools = written.pop("available_tools")

    assert {
        "id": "banking_scenario_000",
        "question": "Hi",
        "ground_truth": "User goals:\n- Transfer $5\n- Get rates",
        "metadata": {
            "benchmark": "agent-leaderboard-v2",
            "domain": "banking",
            "persona_index": 1,
            "persona_name": "Max",
            "num_goals": 2,
            "label_source": "heuristic-v1",
        },
        "user_goals": ["Transfer $5", "Get rates"],
        "expected_tool_calls": [{"tool": "transfer_funds", "parameters": {"to": "<to>"}, "goal": "Transfer $5"}],
    } == written
    assert ["transfer_funds", "get_rates"] == [tool["title"] for tool in tools]
    assert {"done": {"type": "boolean"}} == tools[0]["response_schema"]["properties"]


def test_an_entry_without_goals_or_persona() -> None:
    """Without goals, the entry has the constant sentence of the source, which names banking in every domain.

    A persona out of range gives an empty name.
    """
    written = entry("telecom", 41, {"persona_index": 7, "first_message": "Hi", "user_goals": []}, [{"name": "Max"}], [])

    assert ("telecom_scenario_041", "Complete the user's banking tasks.", "", []) == (
        written["id"],
        written["ground_truth"],
        written["metadata"]["persona_name"],
        written["expected_tool_calls"],
    )


def test_files_of_several_domains() -> None:
    """Each domain has a file of entries, and files of its raw rows with decoded schemas. One more file has the entries of all domains."""
    files = documents({"banking": _rows(), "telecom": _rows()})

    per_domain = [f"raw/{domain}/{config}.json" for domain in ("banking", "telecom") for config in COLUMNS]
    domains = [f"agent_leaderboard_v2_{domain}.json" for domain in ("banking", "telecom", "all")]
    assert sorted(per_domain + domains) == sorted(files)
    assert files["agent_leaderboard_v2_banking.json"] + files["agent_leaderboard_v2_telecom.json"] == files["agent_leaderboard_v2_all.json"]
    assert _rows()["personas"] == files["raw/banking/personas.json"]
    assert {"to": {"type": "string", "description": "Who gets it", "title": "To"}} == files["raw/banking/tools.json"][0]["properties"]


def test_the_entries_are_scenarios(tmp_path: Path) -> None:
    """The written file can be loaded as a data set."""
    files = write(documents({"banking": _rows()}), tmp_path)

    scenarios = list(load(files[0]))
    assert ["banking_scenario_000", "banking_scenario_001"] == [scenario.id for scenario in scenarios]
    assert "heuristic-v1" == scenarios[0].metadata["label_source"]
    assert files[0].read_text().startswith('[\n  {\n    "id": ')


@pytest.mark.parametrize(
    ("config", "rows", "message"),
    [
        ("personas", [], "personas/banking has no rows"),
        ("tools", [{"name": "x"}], "tools/banking has no column 'title' (it has name); choose another --revision"),
        ("tools", [_tool("broken", properties="{")], "tools/banking: a schema of 'broken' is not valid JSON: "),
    ],
)
def test_an_unknown_layout_is_refused(config: str, rows: list[Json], message: str) -> None:
    """If the source has an unknown layout, nothing is converted, and the error says where the layout differs."""
    with pytest.raises(ConfigError) as caught:
        documents({"banking": {**_rows(), config: rows}})

    assert str(caught.value).startswith(f"{REPOSITORY}: {message}")


def test_parquet_files_of_a_split() -> None:
    """The files of a split are the shards of one config and domain in order, without files that have similar names."""
    files = ["tools/banking-00001-of-00002.parquet", "tools/banking-00000-of-00002.parquet", "tools/telecom-00000-of-00001.parquet"]
    others = ["personas/banking-00000-of-00001.parquet", "tools/banking-old.parquet", "old/tools/banking.parquet", "README.md"]

    assert files[1::-1] == parquet_files(files + others, "tools", "banking")
    assert ["tools/telecom.parquet"] == parquet_files(["tools/telecom.parquet"], "tools", "telecom")
    assert [] == parquet_files(others, "tools", "banking")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    """If the second file cannot be written, the first one is removed."""
    with pytest.raises(TypeError):
        write({"raw/a.json": [1], "b.json": [object()]}, tmp_path / "out")

    assert [] == list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (["banking", "gaming"], "no domain 'gaming' (did you mean 'banking'?); known: banking, healthcare, insurance, investment, telecom"),
        ([], "no domain to download; name at least one; known: banking, healthcare, insurance, investment, telecom"),
    ],
)
def test_unknown_domains(domains: list[str], message: str, tmp_path: Path) -> None:
    """The error of an unknown domain lists the known ones. Nothing is downloaded."""
    with pytest.raises(ConfigError) as caught:
        download(domains, "main", tmp_path / "out")

    assert message == str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["huggingface_hub", "pyarrow"])
def test_a_missing_package(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a package of the extra is missing, the error has the command that installs it. The test needs the other package of the extra."""
    pytest.importorskip("pyarrow" if package == "huggingface_hub" else "huggingface_hub")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{package}.parquet", raising=False)

    with pytest.raises(ConfigError) as caught:
        download(["banking"], "main", tmp_path)

    assert f"{package} is not installed: pip install 'pytest-agentbench[hub]'" == str(caught.value)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub("datasets", REPOSITORY, {})) as server:
        yield server


def _download(endpoint: str, revision: str, folder: Path) -> subprocess.CompletedProcess[str]:
    module = "pytest_agentbench.suites.datasets.agent_leaderboard_hub"
    code = f"from pathlib import Path; from {module} import download; download(['banking'], {revision!r}, Path('out'))"
    return hub_client(endpoint, folder, "-c", code)


def _parquet(rows: list[Json]) -> bytes:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    written: bytes = sink.getvalue().to_pybytes()
    return written


@needs_hub
def test_a_download(hub: Hub, tmp_path: Path) -> None:
    """The files of the split are fetched at the commit of the revision and written. Each is printed with its sha256 and the commit."""
    hub.files = {f"{config}/banking-00000-of-00001.parquet": _parquet(rows) for config, rows in _rows().items()}

    done = _download(hub.url, "v1", tmp_path)

    assert 0 == done.returncode, done.stderr
    expected = documents({"banking": _rows()})
    assert expected == {name: json.loads((tmp_path / "out" / name).read_text()) for name in expected}
    digests = {name: hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() for name in expected}
    assert [f"out/{name}  sha256 {digest}  revision {COMMIT}" for name, digest in digests.items()] == done.stdout.splitlines()
    assert len(expected) == sum(file.is_file() for file in (tmp_path / "out").rglob("*"))


@needs_hub
@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("v1", f"{REPOSITORY} at {COMMIT}: no file tools/banking-*.parquet in README.md; choose another --revision"),
        ("v2", f"refuses {REPOSITORY} at revision v2: RevisionNotFoundError: "),
    ],
)
def test_a_hub_without_the_data(hub: Hub, tmp_path: Path, revision: str, message: str) -> None:
    """An unknown revision or layout gives an error of one line, and nothing is written."""
    hub.files = {"README.md": b"hello"}

    done = _download(hub.url, revision, tmp_path)

    last = done.stderr.splitlines()[-1]
    assert 1 == done.returncode
    assert re.match(r"pytest_agentbench\.errors\.(Config|Agentbench)Error: ", last)
    assert message in last
    assert not (tmp_path / "out").exists()


@needs_hub
@pytest.mark.parametrize(("words", "revision"), [((), REVISION), (("--revision", "v2"), "v2")])
def test_the_revision_of_a_command(hub: Hub, tmp_path: Path, words: tuple[str, ...], revision: str) -> None:
    """Without `--revision`, the command asks the hub for a fixed commit instead of a branch, which can change. This hub has neither."""
    done = hub_client(hub.url, tmp_path, "-m", "pytest_agentbench.cli", "download", "agent-leaderboard", *words)

    assert re.fullmatch("[0-9a-f]{40}", REVISION)
    assert f"refuses {REPOSITORY} at revision {revision}: RevisionNotFoundError: " in done.stderr


@needs_hub
def test_no_network(tmp_path: Path) -> None:
    """If the hub is not reachable, the error is one line with the host and the name of the exception, and nothing is written."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening, so the port stays reserved and refuses connections
        host = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = _download(host, "v1", tmp_path)

    last = done.stderr.splitlines()[-1]
    assert 1 == done.returncode
    said = f"pytest_agentbench.errors.AgentbenchError: {host} is unreachable, so it cannot provide {REPOSITORY} at revision v1: "
    assert re.match(re.escape(said) + r"Connect\w*Error: \S", last)  # the name depends on the HTTP library of the client
    assert not (tmp_path / "out").exists()
