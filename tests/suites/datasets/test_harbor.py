"""Reading Harbor task directories as scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.datasets.harbor import load, scenario
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Suite, Task
from tests.sent import sent
from tests.tasks import write_task

#: A task.toml with all supported keys.
WHOLE = """
schema_version = "1.4"
artifacts = ["/app/report.txt", {source = "/app/data", destination = "data"}]

[task]
name = "ours/log-forensics"

[metadata]
difficulty = "easy"
made = 2026-11-23

[agent]
timeout_sec = 900
user = 1000

[verifier]
timeout_sec = 60.5
user = "root"
env = {MODE = "strict", LEVEL = "${LEVEL:-3}"}
environment_mode = "separate"

[environment]
build_timeout_sec = 300.0
cpus = 2
memory_mb = 512
storage_mb = 1024
workdir = "/app"
network_mode = "no-network"
env = {LANG = "C.UTF-8", PLAIN = "in ${THE} middle"}

[solution]
env = {ANSWER = "42"}
"""


def test_a_task(tmp_path: Path) -> None:
    """A scenario has the name of the directory, the instruction and all values of task.toml.

    A template of an environment variable gets its default.
    """
    directory = write_task(tmp_path, "log-forensics", files={"task.toml": WHOLE})
    found = scenario(directory)

    assert ("log-forensics", ({"role": "user", "content": "Write hello into /root/hello."},)) == (found.id, found.messages)
    assert {
        "label_source": "verifier",
        "difficulty": "easy",
        "made": "2026-11-23",
        "task": "ours/log-forensics",
        "agent_timeout_s": 900.0,
        "verifier_timeout_s": 60.5,
    } == found.metadata
    task = found.task
    assert task is not None
    assert (
        Task(
            folder=str(directory),
            digest=task.digest,
            image_digest=task.image_digest,
            build_timeout_s=300.0,
            cpus=2.0,
            memory_mb=512,
            storage_mb=1024,
            network="no-network",
            workdir="/app",
            env={"LANG": "C.UTF-8", "PLAIN": "in ${THE} middle"},
            agent_timeout_s=900.0,
            agent_user="1000",
            verifier_timeout_s=60.5,
            verifier_user="root",
            verifier_env={"MODE": "strict", "LEVEL": "3"},
            separate_verifier=True,
            artifacts=("/app/report.txt", "/app/data"),
            solution_env={"ANSWER": "42"},
        )
        == task
    )
    assert (16, 16) == (len(task.digest), len(task.image_digest))


def test_an_empty_task_toml(tmp_path: Path) -> None:
    """An empty task.toml has the defaults of Harbor: no time limit for the agent, ten minutes for the verifier, and an open network."""
    task = scenario(write_task(tmp_path)).task

    assert task is not None
    assert (None, 600.0, "public", False, "") == (
        task.agent_timeout_s,
        task.verifier_timeout_s,
        task.network,
        task.separate_verifier,
        task.unsupported,
    )


def test_older_schemas(tmp_path: Path) -> None:
    """The old keys `version`, `memory`, `storage` and `allow_internet` are read as their new names. Obsolete keys are ignored."""
    old = (
        'version = "1.0"\n[verifier]\nrestart_environment = false\n[environment]\nmemory = "2G"\nstorage = "1.5G"\nallow_internet = false\n'
    )
    task = scenario(write_task(tmp_path, files={"task.toml": old})).task

    assert task is not None
    assert (2048, 1536, "no-network", "") == (task.memory_mb, task.storage_mb, task.network, task.unsupported)


def test_a_task_with_an_image(tmp_path: Path) -> None:
    """A task with an image needs no environment/, and nothing is built."""
    text = '[environment]\ndocker_image = "ours/task:1"\n'
    task = scenario(write_task(tmp_path, without=("environment/Dockerfile",), files={"task.toml": text})).task

    assert task is not None
    assert ("ours/task:1", "") == (task.image, task.image_digest)


def test_a_canary(tmp_path: Path) -> None:
    """Lines that mark a benchmark in training data are not shown to the agent. Other lines with the word are shown."""
    text = "<!-- benchmark CANARY 123 -->\n# canary: 456\n\n# Task\nFind the canary.\n# canary below\n"

    assert (
        "# Task\nFind the canary.\n# canary below" == scenario(write_task(tmp_path, files={"instruction.md": text})).messages[0]["content"]
    )


def test_a_folder_of_tasks(tmp_path: Path) -> None:
    """Tasks are sorted by name, also if two names differ only in case. Files and folders that are not tasks are ignored."""
    for name in ("zebra", "Apple", "apple"):
        write_task(tmp_path, name)
    for junk in ("__pycache__", ".git", "notes"):
        (tmp_path / junk).mkdir()
        (tmp_path / junk / "README.md").write_text("no task")
    (tmp_path / ".gitattributes").write_text("*.json binary")

    assert ["Apple", "apple", "zebra"] == [each.id for each in load(tmp_path)]


def test_a_task_without_task_toml(tmp_path: Path) -> None:
    """A directory with an instruction but without task.toml is refused instead of ignored."""
    write_task(tmp_path, without=("task.toml",))

    with pytest.raises(ConfigError, match=r"hello: has an instruction\.md but no task\.toml; add one"):
        list(load(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[steps]]\nname = "one"\n', "several steps ([[steps]])"),
        ('[environment]\nos = "Windows"\n', "Windows (environment.os)"),
        ("[environment]\ngpus = 1\n", "GPUs (environment.gpus)"),
        ('[environment]\ntpu = {type = "v6e", topology = "2x4"}\n', "a TPU (environment.tpu)"),
        ('[[environment.mcp_servers]]\nname = "db"\nurl = "http://db/sse"\n', "MCP servers (environment.mcp_servers)"),
        ('[environment]\nskills_dir = "/skills"\n', "skills for the agent (environment.skills_dir)"),
        ('[environment.healthcheck]\ncommand = "true"\n', "a healthcheck before the agent begins (environment.healthcheck)"),
        (
            '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n',
            "an allow-list of hosts (network_mode)",
        ),
        ('[agent]\nnetwork_mode = "no-network"\n', "different networks for agent and verifier (network_mode)"),
        ("[verifier.environment]\ncpus = 4\n", "a sandbox of its own for the verifier ([verifier.environment])"),
        ('[[verifier.collect]]\ncommand = "dump"\n', "commands between agent and verifier ([[verifier.collect]])"),
        ('artifacts = [{source = "/db", service = "db"}]\n', "artifacts of another service (artifacts.service)"),
        (
            'artifacts = [{source = "/app", exclude = ["*.o"]}]\n[verifier]\nenvironment_mode = "separate"\n',
            "artifacts in part (artifacts.exclude)",
        ),
        ('[environment]\nenv = {KEY = "${API_KEY}"}\n', "the host's variable API_KEY (environment.env)"),
        ("[environment]\negress_proxy = true\n", "the unknown key `environment.egress_proxy`"),
        ('schema_version = "1.5"\n', "the schema 1.5 (schema_version; the newest known is 1.4)"),
        ('schema_version = "1.10"\n', "the schema 1.10 (schema_version; the newest known is 1.4)"),
        ('version = "next"\n', "the schema next (schema_version; the newest known is 1.4)"),
        ("[simulated_user]\nmodel = 'x'\n", "the unknown key `simulated_user`"),
    ],
)
def test_unsupported_features(tmp_path: Path, text: str, words: str) -> None:
    """A task that needs an unsupported feature is a scenario that names the feature."""
    directory = write_task(tmp_path, without=("tests/test.sh", "instruction.md"), files={"task.toml": text})
    (found,) = load(tmp_path)

    assert found.task is not None
    assert f"the task {directory.name} asks for {words}: not supported" == found.task.unsupported


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("environment/docker-compose.yaml", "additional services (environment/docker-compose.yaml)"),
        ("trajectory.json", "a conversation to continue (trajectory.json)"),
    ],
)
def test_unsupported_files(tmp_path: Path, file: str, words: str) -> None:
    """If a file of a task asks for an unsupported feature, the scenario names the file."""
    task = scenario(write_task(tmp_path, files={file: ""})).task

    assert task is not None
    assert f"the task hello asks for {words}: not supported" == task.unsupported


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agent\n", "task.toml: not valid TOML; correct it: "),
        ("[agent]\ntimeout_sec = 0\n", "task.toml: agent.timeout_sec: must be greater than 0, not 0"),
        ("[agent]\ntimeout_sec = -5.0\n", "agent.timeout_sec: must be greater than 0, not -5.0"),
        ("[agent]\ntimeout_sec = inf\n", "agent.timeout_sec: must be a finite number, not inf"),
        ('[agent]\ntimeout_sec = "900"\n', "agent.timeout_sec: must be a number, not '900'"),
        ("[agent]\nuser = true\n", "agent.user: must be the name or the number of a user, not True"),
        ("[verifier]\ntimeout_sec = nan\n", "verifier.timeout_sec: must be"),
        ("[verifier]\nenv = {N = 1}\n", "verifier.env.N: must be a text, not 1"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n', "exclude each other; leave one of them out"),
        ("[environment]\nmemory_mb = 0\n", "environment.memory_mb: must be greater than 0, not 0"),
        ("[environment]\nmemory_mb = true\n", "environment.memory_mb: must be a whole number, not True"),
        ("[environment]\nmemory = 2048\n", "environment: memory must be a text such as '2G' or '512M', not 2048"),
        ('[environment]\nmemory = "2GB"\n', "environment: memory must be a text such as '2G' or '512M', not '2GB'"),
        (
            '[environment]\nstorage = "1G"\nstorage_mb = 10\n',
            "environment: storage and storage_mb are different sizes; keep storage_mb",
        ),
        ('[environment]\nallow_internet = "no"\n', "environment: allow_internet must be true or false, not 'no'"),
        (
            '[environment]\nnetwork_mode = "none"\n',
            "environment.network_mode: must be 'public', 'no-network' or 'allowlist', not 'none'",
        ),
        ('[environment]\nos = "beos"\n', "environment.os: must be 'linux' or 'windows', not 'beos'"),
        ('artifacts = ["/app/../etc"]\n', "artifacts: must be a path in the sandbox, without `..`, not '/app/../etc'"),
        ("environment = 5\n", "environment: must be"),
    ],
)
def test_a_broken_task_toml(tmp_path: Path, text: str, sentence: str) -> None:
    """The error about a broken task.toml is one sentence with the file, the key and the fault."""
    directory = write_task(tmp_path, files={"task.toml": text})

    with pytest.raises(ConfigError) as caught:
        scenario(directory)
    assert str(caught.value).startswith(f"{directory}/task.toml: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("instruction.md", "hello/instruction.md: No such file or directory"),
        (
            "environment/Dockerfile",
            "hello: environment/Dockerfile does not exist, and task.toml has no environment.docker_image; add the file",
        ),
        ("tests/test.sh", "hello: tests/test.sh does not exist; add the file"),
    ],
)
def test_a_missing_file(tmp_path: Path, name: str, sentence: str) -> None:
    """A task with a missing file is marked as broken and names the file. Other tasks are complete, and a missing solution is allowed."""
    write_task(tmp_path, "whole", without=("solution/solve.sh",))
    write_task(tmp_path, without=(name,))

    broken, whole = ((each.id, each.task.broken) for each in load(tmp_path) if each.task)

    assert ("hello", True) == (broken[0], broken[1].endswith(sentence))
    assert ("whole", "") == whole


def test_an_empty_instruction(tmp_path: Path) -> None:
    """An instruction that is empty without its canary is refused."""
    with pytest.raises(ConfigError, match=r"instruction\.md: is empty; it must contain the instruction for the agent"):
        scenario(write_task(tmp_path, files={"instruction.md": "<!-- canary 1 -->\n\n"}))


def test_the_digests_of_a_task(tmp_path: Path) -> None:
    """The digest of a task changes with tests, solution, environment, task.toml and instruction.

    The digest of its image changes only with the files of environment/ and their modes.
    """

    def digests() -> tuple[str, str]:
        task = scenario(tmp_path / "hello").task
        assert task is not None
        return task.digest, task.image_digest

    directory = write_task(tmp_path)
    seen = [digests()]
    (directory / "README.md").write_text("for readers")

    assert seen[0] == digests()
    for name in ("task.toml", "instruction.md", "tests/test.sh", "solution/solve.sh"):
        (directory / name).write_text((directory / name).read_text() + "\n#\n")
        seen.append(digests())
    assert (5, 1) == (len({task for task, _ in seen}), len({image for _, image in seen}))
    (directory / "environment/Dockerfile").chmod(0o600)
    assert seen[-1][0] == digests()[0]
    assert seen[-1][1] != digests()[1]


def suite(folder: Path, more: str = "") -> Suite:
    (folder / "suite.yaml").write_text(f"name: ours\ndataset: {{format: harbor, file: tasks{more}}}\n")
    return load_suite(folder / "suite.yaml")


def test_a_suite_of_tasks(tmp_path: Path) -> None:
    """The data file of a suite of tasks is a folder.

    Its hash includes all files except those that tools leave there, and tasks can be sent to another process.
    """
    write_task(tmp_path / "tasks", files={"task.toml": WHOLE})
    write_task(tmp_path / "tasks", "gpu", files={"task.toml": "[environment]\ngpus = 1\n"})
    found = suite(tmp_path)

    assert ("tasks", "harbor", "tasks", "verifier", 2) == (
        found.dataset.name,
        found.dataset.format,
        found.dataset.file,
        found.dataset.label_source,
        found.dataset.size,
    )
    assert {"gpu": "the task gpu asks for GPUs (environment.gpus): not supported"} == found.unsupported
    assert found.scenarios == sent(found.for_pool()).scenarios
    (tmp_path / "tasks/.cache").mkdir()
    (tmp_path / "tasks/.cache/when").write_text("today")
    assert found.dataset.sha256 == suite(tmp_path).dataset.sha256
    (tmp_path / "tasks/gpu/tests/helper.py").write_text("")
    assert found.dataset.sha256 != suite(tmp_path).dataset.sha256


def test_skipped_checks(tmp_path: Path) -> None:
    """A skipped check of a verifier is allowed, as in Harbor, unless suite.yaml says `fail`."""
    write_task(tmp_path / "tasks")
    usual = suite(tmp_path)
    (tmp_path / "suite.yaml").write_text("name: ours\ndataset: {format: harbor, file: tasks}\nverifier: {skipped: fail}\n")
    strict = load_suite(tmp_path / "suite.yaml")

    assert ["allow", "fail"] == [each.task.skipped for found in (usual, strict) for each in found.scenarios if each.task]


def test_changed_files(tmp_path: Path) -> None:
    """An agent may change files of a verifier, unless suite.yaml says `fail`, which needs a sandbox that can compare files."""
    write_task(tmp_path / "tasks")
    usual = suite(tmp_path)
    file, text = tmp_path / "suite.yaml", "name: ours\ndataset: {format: harbor, file: tasks}\nverifier: {changed: fail}\n"
    file.write_text(text)
    strict = load_suite(file)
    file.write_text(f"{text}sandbox: harbor:daytona\n")
    with pytest.raises(ConfigError, match=r"verifier\.changed: harbor:daytona cannot find changed files; use `allow`"):
        load_suite(file)

    assert ["allow", "fail"] == [each.task.changed for found in (usual, strict) for each in found.scenarios if each.task]


def test_private_addresses(tmp_path: Path) -> None:
    """A task gets the address ranges that its suite opens. Invalid ranges are refused, and so are ranges for a sandbox without them."""
    write_task(tmp_path / "tasks")
    file, head = tmp_path / "suite.yaml", "name: ours\ndataset: {format: harbor, file: tasks}\n"
    file.write_text(f"{head}private_addresses: [10.1.0.0/16, fd12::/64]\n")
    found = load_suite(file)
    file.write_text(f"{head}private_addresses: [10.1.0.1/16]\n")
    with pytest.raises(ConfigError, match=r"suite\.yaml: private_addresses: 10\.1\.0\.1/16 has host bits set; must be .* 10\.1\.0\.0/16"):
        load_suite(file)
    file.write_text(f"{head}private_addresses: [10.1.0.0/16]\nsandbox: harbor:daytona\n")
    with pytest.raises(
        ConfigError, match=r"suite\.yaml: private_addresses: harbor:daytona does not support them; remove them, or use the sandbox docker"
    ):
        load_suite(file)

    assert [("10.1.0.0/16", "fd12::/64")] == [each.task.private_addresses for each in found.scenarios if each.task]
    assert found.scenarios == sent(found.for_pool()).scenarios


def test_no_folder(tmp_path: Path) -> None:
    """A missing folder, a tools file beside a folder, and a folder for a format that reads files are refused in one sentence each."""
    with pytest.raises(ConfigError, match=r"tasks: the data folder does not exist; see the suite's README\.md"):
        suite(tmp_path)
    write_task(tmp_path / "tasks")
    with pytest.raises(ConfigError, match="dataset: format harbor reads a folder; leave `tools` out"):
        suite(tmp_path, ", tools: tools.json")
    (tmp_path / "suite.yaml").write_text("name: ours\ndataset: {format: agent-leaderboard, file: tasks}\n")
    with pytest.raises(ConfigError, match=r"the data file .*tasks is a folder; see"):
        load_suite(tmp_path / "suite.yaml")


def test_no_tasks(tmp_path: Path) -> None:
    """A folder without tasks is refused."""
    (tmp_path / "tasks").mkdir()

    with pytest.raises(ConfigError, match="tasks: contains no scenarios"):
        suite(tmp_path)
