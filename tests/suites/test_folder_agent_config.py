"""agent_config.json and config.yaml of the Harbor guide as settings of an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Json
from pytest_agentbench.suites.folder import load_suite, read_agent_config, with_config
from tests.tasks import write_task

MODEL = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
URL = "http://localhost:8000/v1"

#: Keys and values of the guide's files.
AGENT: Json = {
    "agent_name": "nvidia-nemotron-nano",
    "model": MODEL,
    "api_base": URL,
    "api_type": "openai",
    "temperature": 0.6,
    "max_tokens": 2048,
}
SERVER: Json = {
    "general": {"name": "nvidia-nemotron-vllm-deployment", "description": "a server"},
    "model_information": {
        "model_config": {"model_id": MODEL, "trust_remote_code": True, "dtype": "auto"},
        "vllm_engine_config": {"max_model_len": 8192, "gpu_memory_utilization": 0.85},
        "inference_parameters": {"temperature": 0.6, "max_tokens": 200, "top_p": 1.0, "top_k": -1},
    },
}


def no_notice(sentence: str) -> None:
    raise AssertionError(sentence)


def write(folder: Path) -> Path:
    """Writes the guide's two files to a folder, and returns it."""
    (folder / "agent_config.json").write_text(json.dumps(AGENT))
    (folder / "config.yaml").write_text(yaml.safe_dump(SERVER, sort_keys=False))
    return folder


def test_the_original(tmp_path: Path) -> None:
    """Sampling parameters of agent_config.json become settings, but settings beside it win.

    One sentence lists the keys that are not used.
    """
    said: list[str] = []
    settings = {"kind": "terminal", "config": "agent_config.json", "temperature": 0.0, "style": "text"}

    taken = with_config(settings, write(tmp_path), said.append)

    assert {"kind": "terminal", "model": MODEL, "temperature": 0.0, "max_tokens": 2048, "style": "text"} == taken
    (sentence,) = said
    assert f"{tmp_path}/agent_config.json: not used: agent_name, api_type, api_base" == sentence.partition("; ")[0]
    assert f"the server that is measured is the backend's (--agentbench-backend={URL})" == sentence.partition("; ")[2]


def test_the_server_of_the_original(tmp_path: Path) -> None:
    """The model and the sampling parameters of config.yaml become settings. All other keys, or parts of them, are listed as unused."""
    config = read_agent_config(write(tmp_path) / "config.yaml")

    assert {"model": MODEL, "temperature": 0.6, "max_tokens": 200, "top_p": 1.0} == config.settings
    assert ("", f"{tmp_path}/config.yaml: not used: ") == (config.api_base, config.note.partition("general")[0])
    information = ("model_config.trust_remote_code", "model_config.dtype", "vllm_engine_config", "inference_parameters.top_k")
    assert ("general", *(f"model_information.{key}" for key in information)) == config.unused_keys


def test_a_model_in_a_folder(tmp_path: Path) -> None:
    """A local model is served by the path of its folder."""
    named = {"is_model_local": True, "model_id": "tuned", "model_path": "/models/tuned"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_information": {"model_config": named}}))

    config = read_agent_config(tmp_path / "config.yaml")

    assert ({"model": "/models/tuned"}, ("model_information.model_config.model_id",)) == (config.settings, config.unused_keys)


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    """Returns the suite.yaml of a suite with one task, whose agent has sampling parameters of its own."""
    folder = tmp_path / "suite"
    write_task(folder / "tasks")
    agent = {"kind": "terminal", "temperature": 0.0, "max_tokens": 1, "style": "text"}
    suite = {"name": "mine", "dataset": {"format": "harbor", "file": "tasks"}, "agent": agent, "scorers": ["reward"]}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    return folder / "suite.yaml"


def test_the_command_line_wins_over_the_suite(suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is named by --agentbench-set replaces settings of suite.yaml. Later --agentbench-set options replace its values."""
    monkeypatch.chdir(write(tmp_path))

    suite = load_suite(suite_file, [("agent.config", "agent_config.json"), ("agent.max_tokens", 9)])

    assert {"kind": "terminal", "model": MODEL, "temperature": 0.6, "max_tokens": 9, "style": "text"} == suite.agent
    assert ["agent_config.json: not used: agent_name, api_type, api_base"] == [note.partition(";")[0] for note in suite.notes]


def test_a_file_beside_the_suite_comes_first(suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beside the suite has priority over one of the same name in the working directory."""
    monkeypatch.chdir(write(tmp_path))
    (suite_file.parent / "agent_config.json").write_text('{"model": "beside"}')

    suite = load_suite(suite_file, [("agent.config", "agent_config.json")])

    assert ("beside", ()) == (suite.agent["model"], suite.notes)


def test_other_agents(tmp_path: Path) -> None:
    """For other agents, an option with the name `config` is passed on unchanged."""
    settings = {"kind": "./agent.py:Mine", "config": "mine.json"}

    assert settings == with_config(settings, tmp_path, no_notice)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("agent_config.json", "{", "agent_config.json: not valid JSON"),
        ("agent_config.json", "[]", "agent_config.json: is a JSON list, must be an object"),
        (
            "agent_config.json",
            '{"temprature": 1}',
            "agent_config.json: unknown key 'temprature' .did you mean 'temperature'..; known keys: .*max_tokens",
        ),
        ("agent_config.json", None, "agent_config.json: No such file"),
        ("config.yaml", "model_information: [1]", "config.yaml: model_information.model_config must be a mapping, such as `key: value`"),
        ("config.yaml", "general: {}", "config.yaml: has neither model_information.model_config.model_id nor sampling parameters in "),
    ],
)
def test_faults(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    """The error about an invalid file names the file and the fault."""
    if text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError, match=words):
        with_config({"kind": "terminal", "config": name}, tmp_path, no_notice)
