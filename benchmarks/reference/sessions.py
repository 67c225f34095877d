"""Makes the reference runs. Each function runs the sessions of one of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import docker
import yaml

from benchmarks.reference.origins import SEED, SOURCE, TOOL
from benchmarks.reference.store import Files
from benchmarks.reference.workplace import Workplace
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from tests.plain_agent import PLAIN

BANKING = ("pytest", "scenarios/banking")
LIMIT = "--agentbench-limit=10"
ENDS = (0, 1)  # exit statuses: a test that fails is a result


def banking(place: Workplace) -> Path:
    """The suite banking on the embedded engine, with objectives and samples."""
    place.init("banking")
    place.run("pytest", "scenarios/banking", "--agentbench-limit=30", "--agentbench-concurrency=4", "--agentbench-slo=ttft=60ms", ends=ENDS)
    return place.latest


def two_arms(place: Workplace) -> Path:
    """An A/B session with two engines, one of which gets every third tool call wrong. Blocks begin with an empty prefix cache."""
    place.init("banking")
    place.write("backends/careless.yaml", "kind: embedded\npolicy: careless\nerror_rate: 0.3\n")
    place.run(
        "pytest", "scenarios/banking", LIMIT, "--agentbench-ab=careful=embedded,careless=careless", "--agentbench-cache=cold", ends=ENDS
    )
    return place.latest


def three_concurrencies(place: Workplace) -> Path:
    """An A/B session with one engine at three concurrencies."""
    place.init("banking")
    place.run(*BANKING, LIMIT, "--agentbench-ab=set:concurrency=1|2|4", "--agentbench-ab-pairs", ends=ENDS)
    return place.latest


def resumed(place: Workplace) -> Path:
    """A resumed run: three scenarios in the first session, all ten in the second."""
    place.init("banking")
    place.run(*BANKING, "--agentbench-limit=3", "--agentbench-name=night", ends=ENDS)
    place.run(*BANKING, LIMIT, "--agentbench-resume=night", "--agentbench-concurrency=2", ends=ENDS)
    return place.latest


def sweep(place: Workplace) -> Path:
    """A run of `agentbench sweep`. Its output is also stored."""
    place.init("banking")
    place.run("pytest_agentbench.cli", "sweep", "scenarios/banking", "--concurrency=2,4", "--slo=ttft=12ms", "--", LIMIT)
    return place.latest


def _scripted(place: Workplace, *rules: Json) -> None:
    """Writes the suite, and an engine that answers by these rules, otherwise with one tool call and then a text."""
    place.init("banking")
    usual: list[Json] = [{"match": {"turn": 0}, "tool_calls": [{"name": "get_account_balance", "arguments": {}}]}, {"text": "Done."}]
    place.write("backends/answers.yaml", json.dumps([*rules, *usual]))
    place.write("backends/scripted.yaml", "kind: embedded\npolicy: script\nscript: answers.yaml\n")


def retries(place: Workplace) -> Path:
    """A run in which requests fail with two errors. The rollouts are retried, one of them until no retries are left."""
    place.init("banking")
    lost = asks(place, 4)
    failing = [{"match": {"call": 1}, "status": 500}, {"match": {"call": 2}, "status": 503}, {"match": {"contains": lost}, "status": 500}]
    _scripted(place, *failing)
    place.run(
        *BANKING,
        "--agentbench-limit=6",
        "--agentbench-backend=scripted",
        "--agentbench-concurrency=1",
        "--agentbench-retries=2",
        ends=(1, 6),
    )
    return place.latest


def dead_engine(place: Workplace) -> Path:
    """A run in which each of the last five scenarios kills the engine, until nothing more can run."""
    place.init("banking")
    _scripted(place, *({"match": {"contains": asks(place, number)}, "exit": True} for number in range(3, 8)))
    place.run(*BANKING, "--agentbench-limit=8", "--agentbench-backend=scripted", "--agentbench-concurrency=1", ends=ENDS)
    return place.latest


def asks(place: Workplace, number: int) -> str:
    """Returns the question of the scenario with this number, for the rules of a scripted engine."""
    return str(json.loads((place.root / "scenarios/banking/banking.json").read_text(encoding="utf-8"))[number]["question"])


def black_box(place: Workplace) -> Path:
    """A run with a command agent, which is a program."""
    place.init("banking")
    place.write("scenarios/banking/agent.py", PLAIN)
    suite = place.root / "scenarios/banking/suite.yaml"
    own = yaml.safe_load(suite.read_text(encoding="utf-8")) | {"agent": {"kind": "command", "program": ["python3", "agent.py"]}}
    suite.write_text(yaml.safe_dump({name: value for name, value in own.items() if name != "variants"}, sort_keys=False), encoding="utf-8")
    place.run(*BANKING, "--agentbench-limit=6", "--agentbench-concurrency=2", ends=ENDS)
    return place.latest


CARELESS = "kind: embedded\npolicy: careless\nerror_rate: 0.4\n"
AGAINST_BASELINE = (*BANKING, "--agentbench-trials=3", "--agentbench-concurrency=2", "--agentbench-gate=tsq.mean >= -0.15 vs baseline")


def _baseline(place: Workplace) -> None:
    """Writes a suite of ten scenarios and an engine that gets tool calls wrong, and makes a run of the usual engine the baseline."""
    place.init("banking")
    data = place.root / "scenarios/banking/banking.json"
    data.write_text(json.dumps(json.loads(data.read_text(encoding="utf-8"))[:10]), encoding="utf-8")
    place.write("backends/careless.yaml", CARELESS.replace("0.4", "0.9"))
    place.run(*BANKING, "--agentbench-trials=3", ends=ENDS)
    place.run("pytest_agentbench.cli", "baseline", "promote", "latest")


def passing(place: Workplace) -> Path:
    """A run that is as good as its baseline, so that the gate passes."""
    _baseline(place)
    place.run(*AGAINST_BASELINE)
    return place.latest


def failing(place: Workplace) -> Path:
    """A run with an engine that gets tool calls wrong, so that the gate fails against the baseline of another engine."""
    _baseline(place)
    place.run(*AGAINST_BASELINE, "--agentbench-backend=careless", ends=(1,))
    return place.latest


def all_errors(place: Workplace) -> Path:
    """A run in which each request fails with the status 500, so that no rollout is measured."""
    place.init("banking")
    place.write("backends/answers.yaml", json.dumps([{"status": 500}]))
    place.write("backends/scripted.yaml", "kind: embedded\npolicy: script\nscript: answers.yaml\n")
    place.run(*BANKING, "--agentbench-limit=4", "--agentbench-backend=scripted", "--agentbench-retries=0", ends=(6,))
    return place.latest


def limits(place: Workplace) -> Path:
    """A run in which two of six rollouts end at a limit, the number of calls of a rollout."""
    place.init("banking")
    endless: list[Json] = [
        {"match": {"contains": asks(place, number)}, "tool_calls": [{"name": "get_account_balance", "arguments": {}}]} for number in (1, 4)
    ]
    _scripted(place, *endless)
    place.run(*BANKING, "--agentbench-limit=6", "--agentbench-backend=scripted", "--agentbench-set=limits.calls=3", ends=ENDS)
    return place.latest


def five_trials(place: Workplace) -> Path:
    """A run with five trials of each of four scenarios, whose scores differ between trials."""
    place.init("banking")
    place.write("backends/careless.yaml", CARELESS)
    place.run(*BANKING, "--agentbench-limit=4", "--agentbench-trials=5", "--agentbench-backend=careless", ends=ENDS)
    return place.latest


DOCUMENTS = {
    "lamp": "Brass lamps were made in the workshops of the old town, where smiths hammered sheets of brass into shades and stands for oil.",
    "whale": "Blue whales feed on krill, tiny crustaceans of cold oceans, and swallow several tonnes of them on each day of summer.",
}


@contextmanager
def _retriever(place: Workplace) -> Iterator[str]:
    """Runs a retriever with two documents for the `with` block, with embeddings of an embedded engine. Yields its URL."""
    folder = place.root
    engine = Child("pytest_agentbench.engine", {"model": "m"}, folder / "vectors.log")
    try:
        vectors = f"http://127.0.0.1:{engine.ready(Listening).port}/v1"
        corpus = "".join(json.dumps({"id": id, "contents": text}) + "\n" for id, text in DOCUMENTS.items())
        (folder / "corpus.jsonl").write_text(corpus, encoding="utf-8")
        words = ("retriever", "build", "corpus.jsonl", "--output=index", f"--url={vectors}", "--model=m")
        place.run("pytest_agentbench.cli", *words)
        config = {"index_dir": str(folder / "index"), "embeddings": {"url": vectors, "model": "m"}, "least_score": -1.0}
        retriever = Child("pytest_agentbench.retriever", config, folder / "retriever.log")
        try:
            yield f"http://127.0.0.1:{retriever.ready(Listening).port}"
        finally:
            retriever.stop()
    finally:
        engine.stop()


def hle(place: Workplace) -> Path:
    """The suite hle with its orchestrator, which searches in a retriever for the first question and runs programs in bubblewrap for all."""
    place.init("hle")
    answers = place.root / "scenarios/hle/orchestrated_answers.yaml"
    chosen = {"name": "search", "arguments": {"model": "search-1"}}
    search: list[Json] = [
        {"match": {"contains": "write a query to search"}, "text": "<query>lamps of brass from the old town</query>"},
        {"match": {"contains": "Choose an appropriate tool.", "call": 1}, "tool_calls": [chosen]},
    ]
    rules = [*search, *yaml.safe_load(answers.read_text(encoding="utf-8"))]
    answers.write_text(yaml.safe_dump(rules, sort_keys=False), encoding="utf-8")
    with _retriever(place) as url:
        place.run(
            *("pytest", "scenarios/hle", "--agentbench-variants=orchestrator", "--agentbench-backend=scenarios/hle/orchestrated.yaml"),
            *(f"--agentbench-set=variants.orchestrator.agent.retriever={url}", "--agentbench-set=roles.search={}"),
            "--agentbench-concurrency=1",
            ends=ENDS,
        )
    return place.latest


SOLVE = "echo hello > /root/hello"
IMAGE = "agentbench-reference:1"


def terminal(place: Workplace) -> Path:
    """Two terminal tasks in containers, one of which is solved. Raises NoEngine without a Docker Engine."""
    from tests.dockerd import any_engine  # noqa: PLC0415 - only `make` needs the tests
    from tests.sandbox.image import root  # noqa: PLC0415 - as above
    from tests.tasks import write_task  # noqa: PLC0415 - as above

    place.init("banking")
    toml = f'[environment]\ndocker_image = "{IMAGE}"\nnetwork_mode = "no-network"\nmemory_mb = 256\n'
    for name in ("idle", "solved"):
        files = {"task.toml": toml, "instruction.md": f"Task {name}: write hello into /root/hello.\n"}
        write_task(place.root / "scenarios/tasks/tasks", name, files=files)
    suite = {"name": "tasks", "dataset": {"format": "harbor", "file": "tasks"}, "agent": {"kind": "terminal"}, "scorers": ["reward"]}
    place.write("scenarios/tasks/suite.yaml", json.dumps({**suite, "thresholds": {"reward": 1.0}, "timeout": 120}))
    place.write("scenarios/tasks/test_tasks.py", 'def test_task(rollout):\n    assert rollout.score("reward") >= 1.0\n')
    done: Json = {"tool_calls": [{"name": "done", "arguments": {}}]}
    bash = {"name": "bash", "arguments": {"command": SOLVE}}
    rules = [{"match": {"contains": "Task solved", "turn": 0}, "tool_calls": [bash]}, done]
    place.write("backends/answers.yaml", json.dumps(rules))
    place.write("backends/scripted.yaml", "kind: embedded\npolicy: script\nscript: answers.yaml\n")
    with any_engine() as url:
        client = docker.DockerClient(base_url=url)
        client.api.import_image_from_data(root(), repository=IMAGE.partition(":")[0], tag="1", changes=["WORKDIR /app"])
        try:
            place.run("pytest", "scenarios/tasks", "--agentbench-backend=scripted", ends=ENDS, DOCKER_HOST=url)
        finally:
            client.images.remove(IMAGE, force=True)
            client.close()
    return place.latest


def imported(_place: Workplace) -> Files:
    """Imported results of the NeMo Agent Toolkit, with times for two calls of each scenario."""
    from tests.exports.nat_job import VECTOR, item, write_job  # noqa: PLC0415 - only `make` needs the tests

    with tempfile.TemporaryDirectory() as name:
        items = [item("bank-1", 1.0, ["get_rate"], ["get_rate"]), item("bank-2", 0.5, ["get_rate"], ["get_rate", "transfer_funds"])]
        folder = write_job(Path(name) / "job", ["The rate is 4 %.", "Done."], items, VECTOR)
        results = {f"{SOURCE}/{file.name}": file.read_bytes() for file in folder.iterdir()}
    return {TOOL: json.dumps({"tool": "nat"}).encode(), **results}


def ten_thousand(_place: Workplace) -> Files:
    """A run with ten thousand rollouts, generated from a seed."""
    return {SEED: json.dumps({"seed": 7, "rollouts": 10_000}).encode()}


#: Name -> what makes its run directory, or the inputs themselves where there is no session.
MADE: Mapping[str, Callable[[Workplace], Path | Files]] = {
    "banking": banking,
    "two_arms": two_arms,
    "three_concurrencies": three_concurrencies,
    "resumed": resumed,
    "sweep": sweep,
    "black_box": black_box,
    "retries": retries,
    "dead_engine": dead_engine,
    "passing": passing,
    "failing": failing,
    "all_errors": all_errors,
    "limits": limits,
    "five_trials": five_trials,
    "hle": hle,
    "terminal": terminal,
    "imported": imported,
    "ten_thousand": ten_thousand,
}
