"""Harbor from the package index with our agent and our sandbox, on a real Docker Engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest
import yaml

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.lib.process import Child, foreign_environment
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from pytest_agentbench.sandbox.containers import OWNER
from pytest_agentbench.sandbox.harbor_sandbox import compose_problem
from tests.base_image import base_image
from tests.dockerd import NoEngine, any_engine
from tests.engines import engine
from tests.project import Project
from tests.tasks import write_task

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "scenarios/openthoughts/tasks"
HOME = home_of("harbor")
AGENT, ENVIRONMENT = "pytest_agentbench.harbor:Agent", "pytest_agentbench.harbor:Environment"
KEY = "canary-key-of-the-endpoint"

#: The guide's agent_config.json. Its api_base is replaced by the address of the test's server.
AGENT_CONFIG: Json = {
    "agent_name": "nvidia-nemotron-nano",
    "model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "api_base": "http://localhost:8000/v1",
    "api_type": "openai",
    "temperature": 0.1,
    "max_tokens": 8192,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_whole(HOME), reason="NOT TESTED with Harbor: agentbench env create harbor"),
]


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    """Yields the DOCKER_HOST of an engine that has the base image of our tasks. At the end none of our containers is left."""
    try:
        with any_engine() as url, closing(docker.DockerClient(base_url=url)) as client, base_image(client):
            yield url
            assert [] == client.containers.list(all=True, filters={"label": OWNER})
    except NoEngine as why:
        pytest.skip(f"NOT TESTED: Harbor and our sandboxes; {why}")


@pytest.fixture
def environment(engine_url: str, tmp_path: Path) -> dict[str, str]:
    """Returns the environment of Harbor's processes: the engine, a key, and their own home folder."""
    return {**foreign_environment(), "DOCKER_HOST": engine_url, "HOME": str(tmp_path), "OPENAI_API_KEY": KEY}


def scripted(folder: Path, rules: list[Json]) -> Child:
    """Starts a server whose model follows a script."""
    script = folder / "rules.yaml"
    script.write_text(yaml.safe_dump(rules))
    return Child("pytest_agentbench.engine", {"policy": "script", "script": str(script), "model": "scripted"}, folder / "engine.log")


def done(*arguments: str | Path, environment: dict[str, str], given: str = "", folder: Path = ROOT) -> str:
    """Returns the output of a program in Harbor's environment, started in `folder`."""
    command = [str(HOME / "bin" / arguments[0]), *map(str, arguments[1:])]
    ended = subprocess.run(command, input=given, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    return ended.stdout


def trial(task: Path, agent: Json, folder: Path, environment: dict[str, str]) -> Json:
    """Runs one trial of Harbor in our sandbox, and returns its result."""
    config = {
        "task": {"path": str(task)},
        "trials_dir": str(folder / "trials"),
        "trial_name": "a-trial",
        "agent": agent,
        "environment": {"import_path": ENVIRONMENT},
    }
    told: Json = json.loads(done("python", "-m", "tests.real.trial", environment=environment, given=json.dumps(config)))
    return told


@pytest.mark.parametrize("task", sorted(each.name for each in TASKS.iterdir()))
def test_harbors_oracle_in_our_sandbox(task: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Harbor's oracle solves each of our tasks by Harbor's verifier, and the agent that does nothing gets 0."""
    solved = trial(TASKS / task, {"name": "oracle"}, tmp_path / "oracle", environment)
    nothing = trial(TASKS / task, {"name": "nop"}, tmp_path / "nop", environment)

    assert ({"reward": 1.0}, None) == (solved["rewards"], solved["exception"])
    assert ({"reward": 0.0}, None) == (nothing["rewards"], nothing["exception"])


def test_our_agent_by_harbors_command(environment: dict[str, str], tmp_path: Path) -> None:
    """`harbor run` with our agent and our sandbox solves a task, counts its tokens, and writes no key to its files.

    Harbor finds our package in its environment, because it is started in a folder without the package.
    """
    solution = (TASKS / "log-forensics/solution/solve.sh").read_text()
    rules: list[Json] = [
        {"match": {"turn": 0}, "tool_calls": [{"name": "bash", "arguments": {"command": solution}}]},
        {"tool_calls": [{"name": "done", "arguments": {"summary": "solved"}}]},
    ]
    server = scripted(tmp_path, rules)
    try:
        url = f"http://127.0.0.1:{server.ready(Listening).port}/v1"
        agent = ("-a", AGENT, "-m", "openai/scripted", "--ak", f"api_base={url}", "--ak", "max_iterations=3", "--ak", "temperature=0")
        where = ("-p", TASKS / "log-forensics", "-e", ENVIRONMENT, "-o", tmp_path / "jobs", "--job-name", "ours", "-y")
        done("harbor", "run", *agent, *where, environment=environment, folder=tmp_path)
    finally:
        server.stop()

    (file,) = (tmp_path / "jobs/ours").glob("*/result.json")
    result = json.loads(file.read_text())
    assert {"reward": 1.0} == result["verifier_result"]["rewards"]
    assert {"calls": 2, "commands": 1, "limit": ""} == result["agent_result"]["metadata"]
    assert ("agentbench-terminal", "scripted") == (result["agent_info"]["name"], result["agent_info"]["model_info"]["name"])
    assert 0 < result["agent_result"]["n_output_tokens"] < result["agent_result"]["n_input_tokens"]
    said = json.loads((file.parent / "agent/transcript.json").read_text())
    assert ["system", "user", "assistant", "tool", "assistant"] == [each["role"] for each in said][:5]
    assert not [each for each in (tmp_path / "jobs").rglob("*") if each.is_file() and KEY.encode() in each.read_bytes()]


#: The commands of the Harbor guide, in the form of Harbor 0.24, and with our commands in place of the guide's scripts.
GUIDE = r"""
curl -s {url}/models

curl -s {url}/chat/completions -H "Content-Type: application/json" \
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "max_tokens": 50}}'

agentbench backend check --agent agent_config.json

harbor run --path ./openthoughts_dataset --agent-import-path pytest_agentbench.harbor:Agent --ak config=agent_config.json \
  --jobs-dir ./benchmark_results --job-name theirs --n-concurrent 4 -e pytest_agentbench.harbor:Environment -y

cat ./benchmark_results/theirs/result.json | jq '.'

agentbench import harbor ./benchmark_results/theirs

agentbench download openthoughts --skip-download --output ./openthoughts_dataset --run --agent agent_config.json

agentbench export --as atif --output ./ours

cat ./ours/*/result.json | jq '.'
"""


def test_the_commands_of_the_guide(environment: dict[str, str], tmp_path: Path) -> None:
    """All commands of the guide work with its unchanged agent_config.json, from the first request to the results.

    The task is solved both ways.
    """
    if lacking := [name for name in ("curl", "jq") if not shutil.which(name)]:
        pytest.skip(f"NOT TESTED: the guide's commands; {', '.join(lacking)} is not installed")
    shutil.copytree(TASKS / "log-forensics", tmp_path / "openthoughts_dataset/log-forensics")
    first_line = (TASKS / "log-forensics/instruction.md").read_text().partition("\n")[0]
    solution = {"name": "bash", "arguments": {"command": (TASKS / "log-forensics/solution/solve.sh").read_text()}}
    rules: list[Json] = [
        {"match": {"contains": first_line, "turn": 0}, "tool_calls": [solution]},
        {"tool_calls": [{"name": "done", "arguments": {}}]},
    ]
    own = {**environment, "PATH": os.pathsep.join((str(Path(sys.executable).parent), str(HOME / "bin"), environment["PATH"]))}
    said = []
    with engine(tmp_path, rules, model=AGENT_CONFIG["model"]) as address:
        (tmp_path / "agent_config.json").write_text(json.dumps({**AGENT_CONFIG, "api_base": f"{address}/v1"}))
        for command in GUIDE.format(url=f"{address}/v1", model=AGENT_CONFIG["model"]).split("\n\n"):
            ended = subprocess.run(["bash", "-c", command], env=own, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert 0 == ended.returncode, command + ended.stdout + ended.stderr
            said.append(ended.stdout)

    models, chat, checked, _, theirs, imported, ours, _, exported = said
    assert AGENT_CONFIG["model"] == json.loads(models)["data"][0]["id"] == json.loads(chat)["model"]
    assert "✓ tools" in checked
    assert [1, 1] == [json.loads(result)["n_total_trials"] for result in (theirs, exported)]
    assert "harbor_reward: 1.000 mean" in imported
    assert "1 passed" in ours
    assert "agent_config.json: not used: agent_name, api_type\n" in (tmp_path / "benchmark_results/theirs/job.log").read_text()


def test_an_agent_without_iterations_left_is_verified(environment: dict[str, str], tmp_path: Path) -> None:
    """If an agent has no iterations left, its work is verified, and Harbor's record names the limit."""
    server = scripted(tmp_path, [{"tool_calls": [{"name": "bash", "arguments": {"command": "pwd"}}]}])
    try:
        url = f"http://127.0.0.1:{server.ready(Listening).port}/v1"
        agent = {"import_path": AGENT, "model_name": "openai/scripted", "kwargs": {"api_base": url, "max_iterations": 2}}
        told = trial(TASKS / "meter-readings", agent, tmp_path, environment)
    finally:
        server.stop()

    assert ({"reward": 0.0}, None) == (told["rewards"], told["exception"])
    assert {"calls": 2, "commands": 2, "limit": "iterations: 2 were not enough (max_iterations)"} == told["metadata"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"api_base": "http://127.0.0.1:1/v1", "max_iterations": 0}, "max_iterations must be a whole number from 1 up, not 0"),
        ({"api_base": "http://127.0.0.1:1/v1", "key": "x"}, "unknown key 'key'; known keys of terminal: kind, temperature"),
        ({}, "the endpoint must be a URL such as http://127.0.0.1:8000/v1, not None; set it with --ak api_base=URL or OPENAI_BASE_URL"),
    ],
)
def test_a_wrong_option_is_named(options: Json, sentence: str, environment: dict[str, str], tmp_path: Path) -> None:
    """A wrong option is refused in one sentence before anything starts."""
    agent = {"import_path": AGENT, "model_name": "openai/scripted", "kwargs": options}
    with pytest.raises(AssertionError) as caught:
        trial(TASKS / "meter-readings", agent, tmp_path, environment)

    assert sentence in str(caught.value)


def test_an_environment_of_harbors_as_a_sandbox(environment: dict[str, str], tmp_path: Path) -> None:
    """Commands, files and ends work in an environment of Harbor as in our own sandbox."""
    told = json.loads(
        done("python", "-m", "tests.real.harbor_sandbox", TASKS / "log-forensics", tmp_path / "files", environment=environment)
    )

    commands, files, ends = told["commands"], told["files"], told["ends"]
    assert ("harbor:pytest_agentbench.harbor:Environment", 1) == (told["kind"], told["released"])
    assert (3, "one\ntwo\nthree\n") == (commands["in order"]["code"], commands["in order"]["output"])
    assert (127, "bash: line 1: no-such-program: command not found\n") == (commands["unknown"]["code"], commands["unknown"]["output"])
    assert "red\n/tmp\n65534\n" == commands["as somebody"]["output"]
    assert "it's $HOME \\ a\tb\n" == commands["quotes"]["output"]
    assert 126 == commands["too long"]["code"]
    assert 0 < commands["much"]["omitted"]
    assert (None, "begun\n") == (commands["late"]["code"], commands["late"]["output"])
    assert "0\n" == commands["left"]["output"]
    assert ("750 0:0\nran\n", [True, 0]) == (files["modes"], files["same"])
    assert ["a link", "a pipe", "a folder"] == [files[path].rpartition("it is ")[2] for path in ("/link", "/pipe", "/deep")]
    assert files["/large"].endswith("it has 2000000 bytes, and 1048576 is the most that is read")
    assert "FileNotFoundError: there is no /nowhere in the sandbox" == files["/nowhere"]
    assert ("0\nkept\n", 1) == (ends["after"], ends["fresh"])
    assert ends["ended"].endswith("has ended")


def session(project: Project, sandbox: str, *arguments: str, environment: dict[str, str]) -> Json:
    """Runs a session under Harbor's Python with that sandbox, and returns its run.json. The output is in the file `printed`."""
    chosen = ("-p", "no:cacheprovider", "--agentbench-set", f"sandbox={sandbox}", "--agentbench-retries=0")
    command = [str(HOME / "bin/python"), "-m", "pytest", "-m", "openthoughts", *chosen, *arguments]
    ended = subprocess.run(command, env=environment, cwd=project.root, capture_output=True, text=True, check=False)
    (project.root / "printed").write_text(ended.stdout + ended.stderr)
    assert ended.returncode in {0, 1, 6}, ended.stdout + ended.stderr
    return project.run_json


def test_a_session_in_an_environment_of_harbors(project: Project, environment: dict[str, str]) -> None:
    """The terminal agent solves one task and leaves the other. Verifier, scores and report are those of any other session."""
    project.shipped("openthoughts")
    first_line = (TASKS / "log-forensics/instruction.md").read_text().partition("\n")[0]
    call = {"name": "bash", "arguments": {"command": (TASKS / "log-forensics/solution/solve.sh").read_text()}}
    project.backend(
        [{"match": {"contains": first_line, "turn": 0}, "tool_calls": [call]}, {"tool_calls": [{"name": "done", "arguments": {}}]}]
    )

    run = session(project, f"harbor:{ENVIRONMENT}", "-k", "log-forensics or meter-readings", environment=environment)

    tasks = run["suites"]["openthoughts"]["tasks"]
    assert {"log-forensics": 1, "meter-readings": 0} == {each["scenario"]: each["solved"] for each in tasks["tasks"]}
    assert [f"harbor:{ENVIRONMENT}"] == tasks["sandboxes"]
    assert "1 failed, 1 passed" in (project.root / "printed").read_text()


def test_harbors_docker_in_a_session(project: Project, environment: dict[str, str]) -> None:
    """If Docker Compose is missing, each task is an error that says so, and nothing is measured."""
    if not (missing := compose_problem()):
        pytest.skip("NOT TESTED: what is said where compose is missing; it is here")
    project.shipped("openthoughts")
    session(project, "harbor:docker", "-k", "log-forensics", "--agentbench-agent=oracle", environment=environment)

    assert f"harbor:docker: {missing}" in " ".join((project.root / "printed").read_text().split())
    assert "1 error" in (project.root / "printed").read_text()


def test_harbors_docker(project: Project, environment: dict[str, str]) -> None:
    """Harbor's own environment is also a sandbox: the reward of its oracle is 1, and the agent that does nothing gets 0."""
    if missing := compose_problem():
        pytest.skip(f"NOT TESTED: harbor:docker; {missing}")
    project.shipped("openthoughts")
    shutil.rmtree(project.root / "scenarios/openthoughts/tasks")
    write_task(project.root / "scenarios/openthoughts/tasks", files={"task.toml": "[environment]\nnetwork_mode = 'public'\n"})

    for agent, solved in {"oracle": 1, "nothing": 0}.items():
        run = session(project, "harbor:docker", f"--agentbench-agent={agent}", environment=environment)
        tasks = run["suites"]["openthoughts"]["tasks"]
        assert (["harbor:docker"], [solved]) == (tasks["sandboxes"], [each["solved"] for each in tasks["tasks"]])
