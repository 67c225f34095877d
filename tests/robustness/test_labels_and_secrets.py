"""Labels never reach a request, and secrets never reach a file."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.exports import EXPORTS
from pytest_agentbench.records import Json
from pytest_agentbench.suites.folder import load_suite
from tests.engines import engine
from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.small_stacks import PASSES, own_folder, stack
from tests.web import QuietHandler, serving

pytestmark = pytest.mark.slow

BANKING = Path(__file__).parents[2] / "scenarios" / "banking"


def requests_of(log: Path) -> list[str]:
    """Returns the bodies of all requests, decoded, so that texts look as in the data."""
    return [json.dumps(json.loads(line), ensure_ascii=False) for line in log.read_text(encoding="utf-8").splitlines()]


def test_labels_never_reach_a_request(project: Project) -> None:
    """Weakness 1 of the NeMo toolkit. Here requests contain only a scenario's messages and tools."""
    project.backend(request_log=str(project.root / "requests.jsonl"))
    project.suite(scenarios=2, expected=("find_item", "order_item"), description="marker-description")
    entries = json.loads((project.root / "scenarios/shop/data.json").read_text())
    for entry in entries:
        entry.update(
            ground_truth="marker-truth", user_goals=["marker-goal"], metadata={"label_source": "marker-source", "persona": "marker-persona"}
        )
        entry.update(id=f"{entry['id']}-marker-id")
        for call in entry["expected_tool_calls"]:
            call.update(parameters={"item": "marker-parameter", "marker_name": 1}, goal="marker-call-goal")
    project.write("scenarios/shop/data.json", json.dumps(entries))

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=2)
    requests = requests_of(project.root / "requests.jsonl")
    assert 4 == len(requests)
    assert all("is there a lamp?" in request for request in requests)
    assert [] == [request for request in requests if "marker" in request]


def test_labels_of_the_banking_suite_never_reach_a_request(project: Project) -> None:
    """With the suite banking, no request contains a goal, ground truth, persona or id of any customer."""
    log = project.root / "requests.jsonl"
    project.write("backends/quick.yaml", json.dumps({"kind": "embedded", "request_log": str(log)}))
    shutil.copytree(BANKING, project.root / "scenarios" / "banking")
    suite = load_suite(BANKING / "suite.yaml")
    said = " ".join(str(scenario.messages[0]["content"]) for scenario in suite.scenarios)
    entries: list[Json] = json.loads((BANKING / "banking.json").read_text(encoding="utf-8"))
    labels = {
        label for entry in entries for label in (entry["id"], entry["ground_truth"], *entry["user_goals"], *_values(entry["metadata"]))
    }
    labels |= {call["goal"] for entry in entries for call in entry["expected_tool_calls"]}
    secret = [label for label in labels if label and label not in said]

    result = project.run("--agentbench-backend=quick", "--agentbench-limit=40", "--tb=no", "scenarios/banking")

    outcomes = result.parseoutcomes()
    assert 40 == outcomes["passed"] + outcomes["failed"]
    requests = requests_of(log)
    assert len(requests) >= 40
    assert len(secret) > 500
    text = "\n".join(requests)
    assert [] == [label for label in secret if label in text or json.dumps(label)[1:-1] in text]
    assert [] == [name for name in ("ground_truth", "user_goals", "expected_tool_calls", "label_source", "response_schema") if name in text]


def _values(metadata: Json) -> Iterator[str]:
    """Yields texts of the metadata that identify a customer. Other words, such as the domain, may occur in any message."""
    return (value for name, value in metadata.items() if name in ("persona_name", "benchmark", "label_source") and len(str(value)) > 4)


class Proxy(ThreadingHTTPServer):
    """Forwards requests to an engine, and records their Authorization headers."""

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.upstream = upstream
        self.authorizations: list[tuple[str, str | None]] = []  # (path, Authorization header)


class Passing(QuietHandler):
    """Handles one request of a Proxy."""

    server: Proxy

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers["content-length"])))

    def _pass_on(self, body: bytes | None) -> None:
        self.server.authorizations.append((self.path, self.headers["authorization"]))
        request = urllib.request.Request(self.server.upstream + self.path, body, {"content-type": "application/json"})
        try:
            opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20)
        except urllib.error.HTTPError as refusal:  # An error status is forwarded like any other answer.
            opened = refusal
        with opened as answer:
            self.answer(answer.status, answer.read(), answer.headers["content-type"])


@contextmanager
def recorded(upstream: str) -> Iterator[Proxy]:
    with serving(Proxy(upstream)) as proxy:
        yield proxy


def files_of(directory: Path) -> Iterator[tuple[Path, str]]:
    return ((file, file.read_text(errors="replace")) for file in directory.rglob("*") if file.is_file())


def test_a_running_server_is_a_backend(project: Project) -> None:
    """A server that already runs is measured like any other backend, requests use the model that it lists, and it keeps running."""
    project.suite(scenarios=3)
    with engine(project.root, FIND_THEN_ANSWER, model="by-hand") as url:
        result = project.run(f"--agentbench-backend={url}/v1", "scenarios/shop")

        result.assert_outcomes(passed=3)
        assert ("url", "by-hand") == (project.run_json["backend"]["name"], project.run_json["backend"]["served_model"])
        assert {"by-hand"} == {call.model for rollout in project.rollouts for call in rollout.calls}
        again = project.run(f"--agentbench-backend={url}/v1/", "--agentbench-limit=1", "scenarios/shop")
        again.assert_outcomes(passed=1)


def test_a_key_reaches_the_server_and_no_file(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of api_key_env is sent with every request, but is in no file and no output."""
    key = "a-key-that-nobody-may-read-0815"
    monkeypatch.setenv("SHOP_ACCESS", key)  # This name does not look like that of a secret.
    project.suite(scenarios=2)
    with engine(project.root, FIND_THEN_ANSWER, model="by-hand") as url, recorded(url) as proxy:
        address = f"http://127.0.0.1:{proxy.server_port}/v1"
        project.write("backends/keyed.yaml", json.dumps({"kind": "url", "url": address, "api_key_env": "SHOP_ACCESS"}))

        result = project.run("--agentbench-backend=keyed", "-vv", "scenarios/shop")

    result.assert_outcomes(passed=2)
    assert {"/version", "/v1/models", "/v1/chat/completions"} == {path for path, _ in proxy.authorizations}
    assert {f"Bearer {key}"} == {authorization for _, authorization in proxy.authorizations}
    assert [] == [file for file, text in files_of(project.root / "reports") if key in text]
    assert key not in result.stdout.str() + result.stderr.str()
    assert "SHOP_ACCESS" == project.run_json["backend"]["api_key_env"]


@pytest.mark.parametrize("password", ["swordfish-0817", "sword@fish-0817"])
@pytest.mark.parametrize("reached", [True, False], ids=["reached", "refused"])
def test_a_password_of_a_url_reaches_the_server_and_no_file(project: Project, reached: bool, password: str) -> None:
    """User and password of a URL are sent with every request. Password and header are in no file or output, whether the server was reached
    or not.

    The address without them is in the file of durations, which is outside of the run directory.
    """
    coded = base64.b64encode(f"bob:{password}".encode()).decode()
    project.suite(scenarios=2)
    with engine(project.root, FIND_THEN_ANSWER, model="by-hand") as url, recorded(url) as proxy:
        port = proxy.server_port if reached else 1
        login = f"bob:{password}" if reached or "@" in password else password
        result = project.run(f"--agentbench-backend=http://{login}@127.0.0.1:{port}/v1", "-vv", "scenarios/shop")

    result.assert_outcomes(passed=2 * reached, errors=1 - reached)
    assert ({f"Basic {coded}"} if reached else set()) == {authorization for _, authorization in proxy.authorizations}
    assert f"http://127.0.0.1:{port}/v1" == project.run_json["settings"]["backend"] == project.run_json["backend"]["url"]
    assert [f"http://127.0.0.1:{port}/v1"] == [*json.loads((project.root / "reports/durations.json").read_text())]
    shown = ("output", result.stdout.str() + result.stderr.str())
    assert [] == [name for name, text in (shown, *files_of(project.root / "reports")) if password in text or coded in text]


def test_secrets_are_redacted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of variables that look secret are redacted from an agent's output, answers and exceptions in journal, reports and output."""
    secret, quoted = "swordfish-0815", 'with"quote-and-ü-0815'
    monkeypatch.setenv("SHOP_PASSWORD", secret)
    monkeypatch.setenv("OTHER_TOKEN", quoted)
    project.suite(scenarios=2, agent={"kind": "./agent.py:Agent"})
    project.write(
        "scenarios/shop/agent.py",
        """
import os
from dataclasses import dataclass
from pytest_agentbench.records import Answer

@dataclass(frozen=True)
class Agent:
    async def run(self, scenario, llm, tools):
        print("the password is", os.environ["SHOP_PASSWORD"], os.environ["OTHER_TOKEN"], "sk-" + "a" * 30)
        await llm.chat([{"role": "user", "content": os.environ["SHOP_PASSWORD"]}])
        if scenario.id == "shop-0":
            raise ValueError("cannot log in with " + os.environ["SHOP_PASSWORD"])
        return Answer(os.environ["OTHER_TOKEN"])
""",
    )

    result = project.run("-vv", "--junitxml=reports/junit.xml", "scenarios/shop")

    result.assert_outcomes(failed=2)
    assert "the password is [redacted] [redacted] [redacted]\n" in project.rollouts[0].log
    assert ["[redacted]"] == [rollout.answer for rollout in project.rollouts if rollout.status == "ok"]
    assert any("ValueError: cannot log in with [redacted]" in rollout.reason for rollout in project.rollouts)
    for text in (result.stdout.str() + result.stderr.str(), *(text for _, text in files_of(project.root / "reports"))):
        assert [] == [word for word in (secret, quoted, "quote-and-", "sk-aaaa") if word in text]


#: Maps a place to the key that is put there: a key of a known format, or the value of a variable.
PLANTED = {
    "prompt": f"sk-proj-{'Pr0mpt' * 8}",
    "tool arguments": f"hf_{'T00lArg' * 5}",
    "answer": f"nvapi-{'Answ3r-' * 9}",
    "answer of the judge": f"ghp_{'Jud93ment' * 4}",
    "error message": "xoxb-123456789012-Err0rMessage",
    "environment": 'Env1ron"ment/with spaces',
    "header": "H3ader-Value-that-is-long-enough",
    "log": f"eyJhbGciOiJI.eyJzdWIiOiIx.{'L0gged' * 5}",
    "exception": "AKIAEXCEPTION1234567",
    "scorer": f"AIza{'Scorer7' * 5}",
    "command line": f"glpat-{'C0mmandLine' * 2}",
    "repr": 'R3presented\\and"quoted',
    "white space": "C0llapsed \n white  space",
    "login": "a:S3cret-login",
    "query": "Qu3ry-of-a-URL",
    "field": "F13ld \\ of JSON",
    "token of a URL": "T0ken-without-a-user",
    "key of Azure": "4zure" * 6,
}

#: Texts are truncated within this value, after 17 of its 20 letters.
CUT = "Tw3nty-l3tters-0f-it"

PLANTING_AGENT = """
import base64, logging, os
from dataclasses import dataclass
from urllib.parse import quote
from pytest_agentbench.agents.tool_calling import ToolCalling

@dataclass(frozen=True)
class Agent(ToolCalling):
    async def run(self, scenario, llm, tools):
        value = os.environ["SHOP_PASSWORD"]
        encoded = quote(value, safe="") + " " + base64.b64encode(("me:" + value).encode()).decode()
        print("q" * (32 * 1024 - 17) + os.environ["CUT_TOKEN"] + "r" * 99_999)
        print(repr(os.environ["REPR_TOKEN"]), " ".join(os.environ["SPACE_TOKEN"].split()), FORMS)
        logging.getLogger("shop").warning("LOG " + value + " " + encoded + os.environ["SHOP_ACCESS"])
        if scenario.id == "shop-2":
            raise ValueError("EXCEPTION")
        if scenario.id == "shop-0":
            raise ValueError("s" * (32 * 1024 - 128 - 17) + os.environ["CUT_TOKEN"] + "t" * 99_999)
        return await super().run(scenario, llm, tools)
"""


@WAYS
def test_no_planted_key_is_in_any_file(project: Project, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    """Keys in prompts, calls, answers, judgements, errors, logs, headers, options and variables are in no file, export or output.

    This includes the beginning of a key at which a text was truncated.
    """
    summary = project.root / "summary.md"
    for name, value in (("GITHUB_ACTIONS", "true"), ("GITHUB_STEP_SUMMARY", str(summary)), ("SHOP_ACCESS", PLANTED["header"])):
        monkeypatch.setenv(name, value)
    values = {
        "SHOP_PASSWORD": PLANTED["environment"],
        "CUT_TOKEN": CUT,
        "REPR_TOKEN": PLANTED["repr"],
        "SPACE_TOKEN": PLANTED["white space"],
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    project.suite(
        scenarios=5,
        agent={"kind": "./agent.py:Agent"},
        scorers=["tsq", "action_completion", "./scorer.py:fussy"],
        thresholds={"tsq": 1.0, "tsq.mean": 1.0},
        expected=("find_item", "order_item"),
    )
    entries = json.loads((project.root / "scenarios/shop/data.json").read_text())
    for entry in entries:
        entry["question"] += f" My key is {PLANTED['prompt']}, in a URL {quote(PLANTED['environment'])}."
    project.write("scenarios/shop/data.json", json.dumps(entries))
    written = (
        f"Authorization: Basic {base64.b64encode(PLANTED['login'].encode()).decode()}, https://host/v1?api_key={PLANTED['query']}&x=1, "
        f"https://{PLANTED['token of a URL']}@host/v1, api-key: {PLANTED['key of Azure']}, {json.dumps({'password': PLANTED['field']})}"
    )
    agent = PLANTING_AGENT.replace("LOG", PLANTED["log"]).replace("EXCEPTION", PLANTED["exception"]).replace("FORMS", repr(written))
    project.write("scenarios/shop/agent.py", agent)
    scorer = f"def fussy(scenario, rollout):\n    assert scenario.id != 'shop-1', {PLANTED['scorer']!r}\n    return 1.0\n"
    project.write("scenarios/shop/scorer.py", scorer)
    arguments = {"item": f"lamp {PLANTED['tool arguments']} {PLANTED['environment']}"}
    judgement = {"goal_1": {"reasoning": f"{PLANTED['answer of the judge']} {PLANTED['environment']}", "completed": True}}
    rules: list[Json] = [
        {"match": {"contains": "<goals>"}, "text": json.dumps(judgement)},
        {"match": {"contains": "shop-3:"}, "status": 400, "message": f"no such key: {PLANTED['error message']}"},
        {"match": {"contains": "shop-4:"}, "status": 400, "message": f"{'x' * (300 - 17)}{CUT} and more"},
        {"match": {"turn": 0}, "tool_calls": [{"name": "find_item", "arguments": arguments}]},
        {"text": f"It is {PLANTED['answer']}."},
    ]
    with engine(project.root, rules, model="by-hand") as url, recorded(url) as proxy:
        address = f"http://127.0.0.1:{proxy.server_port}/v1"
        project.write("backends/keyed.yaml", json.dumps({"kind": "url", "url": address, "api_key_env": "SHOP_ACCESS"}))

        option = f"--agentbench-set=description={PLANTED['command line']}"
        result = project.run(*way, "--agentbench-backend=keyed", option, "-vv", "--junitxml=reports/junit.xml", "scenarios/shop")

        assert {f"Bearer {PLANTED['header']}"} == {authorization for _, authorization in proxy.authorizations}
    assert {"agent_error": 2, "infra_error": 2, "ok": 1} == Counter(rollout.status for rollout in project.rollouts), result.stdout.str()
    assert any("[redacted]" in str(rollout.messages) for rollout in project.rollouts)
    for name in EXPORTS:
        assert 0 == main(["export", "latest", "--as", name, "--reports", str(project.root / "reports")])
    texts = {
        **dict(files_of(project.root / "reports")),
        summary: summary.read_text(),
        Path("output"): result.stdout.str() + result.stderr.str(),
    }
    assert {"rollouts.jsonl", "run.json", "report.md", "comment.md", "metrics.txt", "junit.xml", "summary.md"} <= {
        file.name for file in texts
    }
    assert [] == [
        (file.name, where) for file, text in texts.items() for where, key in PLANTED.items() for form in forms(key) if form in text
    ]
    assert [] == [file.name for file, text in texts.items() if CUT[:6] in text]


def forms(key: str) -> set[str]:
    """Returns the forms in which a key may appear in a file. For base64, only the middle is independent of the surrounding text."""
    return {
        key,
        json.dumps(key)[1:-1],
        json.dumps(json.dumps(key))[3:-3],
        repr(key)[1:-1],
        base64.b64encode(key.encode()).decode()[4:-4],
        " ".join(key.split()),
        quote(key, safe=""),
        base64.b64encode(f"me:{key}".encode()).decode()[8:-4],
    }


LOOKS = """
from pathlib import Path

def test_it(rollout):
    (log,) = Path("reports").glob("2*/backend/stack_daemon.log")
    assert "--say 'starting with [redacted] and [redacted]'" in log.read_text()
"""


def test_services_write_no_keys(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in a stack service's output and command are in no log after the session.

    `agentbench scrub` removes those that are written later.
    """
    key, value = f"sk-ant-{'Prin7ed' * 6}", "Pa55word-of-the-shop"
    monkeypatch.setenv("SHOP_PASSWORD", value)
    with own_folder(monkeypatch):
        project.suite(scenarios=2, test=LOOKS)
        stack(project, "--say", f"starting with {key} and {value}")

        result = project.run("--agentbench-backend=small", "scenarios/shop")

    result.assert_outcomes(passed=2)
    logs = {file.name: text for file, text in files_of(project.directory / "backend")}
    assert {"engine.log", "stack_daemon.log"} <= set(logs)
    assert "starting with [redacted]***" in logs["engine.log"]
    assert [] == [file for file, text in files_of(project.root / "reports") if key in text or value in text]

    with (project.directory / "backend" / "engine.log").open("a") as log:
        log.write(f"late: {value}\n")
    assert 0 == main(["scrub", str(project.root / "reports")])
    assert "late: [redacted]" in (project.directory / "backend" / "engine.log").read_text()


def test_a_service_that_dies_tells_no_keys(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a log in an error message contains no keys, on the terminal and in reports, including keys that only the YAML names."""
    monkeypatch.setenv("SHOP_ACCESS", "a-key-that-nobody-may-read-0815")
    with own_folder(monkeypatch):
        project.suite(scenarios=1, test=PASSES)
        options = ("--slow", "60", "--die-after", "0.3", "--say", "no access with a-key-that-nobody-may-read-0815")
        stack(project, *options, service={"secrets": ["SHOP_ACCESS"]})

        result = project.run("--agentbench-backend=small", "--junitxml=reports/junit.xml", "scenarios/shop")

    result.assert_outcomes(errors=1)
    assert "no access with [redacted]" in result.stdout.str()
    assert "0815" not in result.stdout.str() + result.stderr.str()
    assert [] == [file for file, text in files_of(project.root / "reports") if "0815" in text]


ORDERS = """
from dataclasses import dataclass
from pytest_agentbench.agents.tool_calling import ToolCalling

@dataclass(frozen=True)
class Agent(ToolCalling):
    async def run(self, scenario, llm, tools):
        print("postgres, find_item, shop-postgres-1, lamp-of-aladdin, a-real-secret")
        return await super().run(scenario, llm, tools)
"""


def test_a_secret_that_is_a_name(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables whose values are words, names or data of the suite are reported at the start. The run and a rescored run are complete."""
    values = {"PGPASSWORD": "postgres", "CACHE_KEY": "find_item", "ROW_KEY": "postgres-1", "ITEM_KEY": "lamp-of-aladdin"}
    for name, value in {**values, "SHOP_KEY": "a-real-secret"}.items():
        monkeypatch.setenv(name, value)
    project.backend(
        [{"match": {"turn": 0}, "tool_calls": [{"name": "find_item", "arguments": {"item": "lamp-of-aladdin"}}]}, {"text": "ok"}]
    )
    project.suite(
        "postgres",
        scenarios=2,
        agent={"kind": "./agent.py:Agent"},
        scorers=["tsq", "parameter_accuracy"],
        thresholds={"tsq": 1.0, "tsq.mean": 1.0},
    )
    project.write("scenarios/postgres/agent.py", ORDERS)
    data = project.root / "scenarios/postgres/data.json"
    data.write_text(data.read_text().replace('"item": "lamp"', '"item": "lamp-of-aladdin"'))

    result = project.run("scenarios/postgres")

    result.assert_outcomes(passed=2)
    output = result.stdout.str() + result.stderr.str()
    assert "agentbench: PGPASSWORD: the value is an ordinary word, so it is not redacted anywhere; a secret needs another value" in output
    named = "agentbench: CACHE_KEY, ITEM_KEY, ROW_KEY: the value is a text of a suite, so it is not redacted in records and reports"
    assert named in output
    assert {"postgres-0", "postgres-1"} == {rollout.scenario for rollout in project.rollouts}
    assert {("find_item",)} == {tuple(rollout.tools) for rollout in project.rollouts}
    assert {"postgres, find_item, shop-postgres-1, lamp-of-aladdin, [redacted]\n"} == {rollout.log for rollout in project.rollouts}
    assert {"postgres"} == {rule["suite"] for rule in project.run_json["gate"]["rules"]}
    for name in ("tsq", "parameter_accuracy"):
        assert 1.0 == project.run_json["suites"]["postgres"]["scores"][name]["mean"]["value"]

    assert 0 == main(["rescore", "latest", "--reports", str(project.root / "reports")])
    again = json.loads((project.directory.with_name(f"{project.directory.name}-rescored") / "run.json").read_text())
    for name in ("tsq", "parameter_accuracy"):
        assert 1.0 == again["suites"]["postgres"]["scores"][name]["mean"]["value"]


@pytest.mark.parametrize("where", ["id", "tool", "argument"])
def test_a_key_in_a_name(project: Project, where: str) -> None:
    """A suite with a name that looks like a key is refused in a sentence that does not contain the key."""
    key = f"sk-proj-{'N4me' * 8}"
    project.suite(scenarios=2)
    entries = json.loads((project.root / "scenarios/shop/data.json").read_text())
    if where == "id":
        entries[1]["id"] = f"shop-{key}"
    elif where == "tool":
        entries[1]["available_tools"][2]["title"] = key
    else:
        entries[1]["available_tools"][2]["properties"][key] = {"type": "string"}
    project.write("scenarios/shop/data.json", json.dumps(entries))

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    what = {"id": "the id", "tool": "the name of tool 3", "argument": "the name of argument 3 of tool 3"}[where]
    said = f"suite.yaml: {what} of scenario 2 looks like an API key, and reports contain names; give it another name"
    assert said in " ".join(result.stdout.str().split())
    assert "N4me" not in result.stdout.str() + result.stderr.str()
