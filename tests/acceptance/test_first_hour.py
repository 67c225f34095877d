"""The likely mistakes of a first hour: each ends in a sentence with the place of the mistake and what would work.

Each entry below is a project with one mistake, made in the way in which a new user makes it.
"""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from pytest_agentbench.cli import main
from tests.project import Project, page
from tests.robustness.test_bad_backends import web_server

LOOP = """
async def run(scenario, llm, tools):
    messages = [*scenario.messages]
    for turn in range(1, 7):
        reply = await llm.chat(messages, tools.schemas)
        messages.append(reply.message)
        if not reply.tool_calls:
            return reply.text
        for call in reply.tool_calls:
            result = await tools.call(call.name, call.arguments, turn)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
"""

FORGOTTEN = "the result of tools.call was never awaited; write `await tools.call(...)`"

#: Maps a mistake to the agent's code and the reason of its agent_error.
AGENTS = {
    "await_forgotten": (LOOP.replace("await tools", "tools"), f"{FORGOTTEN} (agent.py:10)"),
    "result_unused": (
        LOOP.replace("result = await tools", "tools").replace('"content": result', '"content": "done"'),
        f"{FORGOTTEN} (agent.py:10)",
    ),
    "await_of_chat_forgotten": (
        LOOP.replace("await llm", "llm"),
        "'coroutine' object has no attribute 'message'; `await` is missing before the call that returned it (agent.py:6)",
    ),
    "arguments_parsed": (
        "import json" + LOOP.replace("call.arguments", "json.loads(call.arguments)"),
        "tools.call takes the arguments as the JSON text of the model, not as a dict (agent.py:10)",
    ),
    "turn_left_out": (
        LOOP.replace(", turn)", ")"),
        (
            "missing 1 required positional argument: 'turn'; it is the number of the model's answer that asks for the call, from 1, "
            "as in `for turn in range(1, 7)` (agent.py:10)"
        ),
    ),
    "tools_of_the_scenario": (
        LOOP.replace("tools.schemas", "scenario.tools")
        .replace("llm, tools", "llm, client, tools")
        .replace("llm.chat(messages, ", "client.chat.completions.create(model=llm.model, messages=messages, tools="),
        (
            "TypeError: Object of type Tool is not JSON serializable; send `tools.schemas`, which has the tools of the scenario as a "
            "request needs them (agent.py:5)"
        ),
    ),
    "dict_as_object": (
        "async def run(scenario):\n    return scenario.expected[0].tool\n",
        "no attribute 'tool'; it has keys instead of attributes, as in x['tool']: 'tool', 'parameters', 'goal' (agent.py:2)",
    ),
    "not_imported": (
        "def run():\n    return Answer('a lamp')\n",
        "name 'Answer' is not defined; write `from pytest_agentbench import Answer` at the top of the file (agent.py:2)",
    ),
    "returns_dict": (
        "\n\nasync def run(scenario):\n    return {'answer': 'a lamp'}\n",
        "the agent returned \"{'answer': 'a lamp'}\" (dict), not an Answer, a text or None (agent.py:3)",
    ),
    "returns_text": (
        "class Agent:\n    async def run(self, scenario, llm, tools):\n        return 'a lamp'\n\nrun = Agent\n",
        "the agent returned 'a lamp' (str), not an Answer (agent.py:2)",
    ),
    "wrong_attribute": (
        "async def run(scenario):\n    return scenario.question\n",
        "'Scenario' object has no attribute 'question'; it has: id, messages, tools, expected, metadata, ",
    ),
    "scenario_as_dict": (
        "async def run(scenario):\n    return scenario['messages']\n",
        "'Scenario' object is not subscriptable; it has attributes instead of keys: id, messages, tools, ",
    ),
    "reply_as_dict": (
        LOOP.replace("reply.tool_calls", "reply['tool_calls']"),
        "'Reply' object is not subscriptable; it has attributes instead of keys: raw_message, finish_reason, usage, message, text,",
    ),
    "one_text_as_messages": (
        "async def run(llm):\n    return (await llm.chat('Where is the lamp?')).text\n",
        "llm.chat takes a list of messages, such as [{'role': 'user', 'content': '...'}], not str (agent.py:2)",
    ),
    "key_not_set": ("import os\n\ndef run():\n    return os.environ['SHOP_KEY']\n", "KeyError: 'SHOP_KEY' (agent.py:4)"),
}

NUMBER_OR_SCORE = "a number, or a Score with parts and an explanation (from pytest_agentbench import Score)"

#: Maps a mistake to the body of the scorer and the error of its score.
SCORERS = {
    "returns_none": ("rollout.answer", f"the scorer returned None (NoneType); return {NUMBER_OR_SCORE} (scorers.py:1)"),
    "returns_word": ("return 'good'", "the scorer returned 'good' (str); return a number, or a Score"),
    "returns_pair": ("return 0.5, 'half of it'", "the scorer returned (0.5, 'half of it') (tuple); return a number, or a Score"),
    "returns_dict": ("return {'score': 1.0}", "the scorer returned {'score': 1.0} (dict); return a number, or a Score"),
    "returns_nan": ("return float('nan')", "nan is not a score, which is a number between -1e+15 and 1e+15"),
    "call_as_dict": ("return rollout.tool_calls[0]['name'] == 'x'", "'ToolCall' object is not subscriptable; it has attributes instead"),
}

DECLARED = "from pytest_agentbench import scorer\n\n@scorer(range=(0, 1))\ndef score(scenario, rollout):\n    return 2.0\n"


def test_mistakes_that_show_in_a_rollout(project: Project) -> None:
    """An agent's mistake is an agent_error, and a scorer's the reason of a missing score. Both have the line in the user's file."""
    test = "def test_it(rollout):\n    rollout.score('score')\n"
    for name, (code, _) in AGENTS.items():
        project.suite(name, scenarios=1, agent={"kind": "./agent.py:run"})
        project.write(f"scenarios/{name}/agent.py", code)
    scorers = {f"scorer_{name}": f"def score(scenario, rollout):\n    {body}\n" for name, (body, _) in SCORERS.items()}
    for name, code in {**scorers, "scorer_out_of_range": DECLARED}.items():
        project.suite(name, scenarios=1, scorers=["./scorers.py:score"], thresholds={}, test=test)
        project.write(f"scenarios/{name}/scorers.py", code)

    result = project.run("scenarios")

    found = {each.suite: each.reason or each.score_errors.get("score", "") for each in project.rollouts}
    reasons = {name: reason for name, (_, reason) in AGENTS.items()} | {f"scorer_{name}": reason for name, (_, reason) in SCORERS.items()}
    assert {} == {name: found[name] for name, reason in reasons.items() if reason not in found[name]}
    assert {} == {name: reason for name, reason in found.items() if ".py:" not in reason}
    assert "the score 2 is outside the range that its scorer declares (between 0 and 1) (scorers.py:3)" in found["scorer_out_of_range"]
    statuses = {each.suite: each.status for each in project.rollouts}
    assert {"agent_error"} == {statuses[name] for name in AGENTS}
    assert "coroutine 'Toolbox" not in result.stdout.str()  # Python's own RuntimeWarning


OWN_CLIENT = """
from openai import AsyncOpenAI


async def run(scenario, llm, tools):
    client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1")
    return "a lamp"
"""


@pytest.mark.slow
def test_calls_that_do_not_go_through_agentbench(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent with a client of its own: the first page and `agentbench show` say that no call was measured, an error names the remedy."""
    pytest.importorskip("openai")
    project.suite(agent={"kind": "./agent.py:run"})
    project.write("scenarios/shop/agent.py", OWN_CLIENT)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.chdir(project.root)

    result = project.run("scenarios/shop")

    first_page = " ".join(" ".join(page(result)).split())
    assert "no LLM call of 3 rollouts went through agentbench, so no call was measured; the agent has to use llm.openai()" in first_page
    assert 3 == project.run_json["suites"]["shop"]["without_calls"]
    assert 0 == main(["show", "latest", "shop-1"])
    assert "conversation: none, because no LLM call of this rollout went through agentbench" in capsys.readouterr().out

    monkeypatch.delenv("OPENAI_API_KEY")
    project.run("scenarios/shop", "-k", "shop-1")

    [rollout] = project.rollouts
    assert "agent_error" == rollout.status
    assert "; llm.openai() returns a client that needs none, and whose calls are measured" in rollout.reason


@pytest.mark.slow
def test_a_call_that_is_awaited_later(project: Project) -> None:
    """Calls that are gathered, or awaited through a task, are not taken for forgotten ones."""
    gathered = LOOP.replace(
        "await tools.call(call.name, call.arguments, turn)", "(await asyncio.gather(tools.call(call.name, '{}', turn)))[0]"
    )
    task = LOOP.replace("await tools.call(call.name, call.arguments, turn)", "await asyncio.create_task(tools.call(call.name, '{}', turn))")
    for name, code in {"gathered": gathered, "task": task}.items():
        project.suite(name, scenarios=1, agent={"kind": "./agent.py:run"})
        project.write(f"scenarios/{name}/agent.py", "import asyncio\n" + code)

    project.run("scenarios").assert_outcomes(passed=2)


#: Maps a mistake to a file of the suite, its text, and the sentence about it.
CODE = {
    "other_parameters": (
        "agent.py",
        "\nasync def run(scenario, model):\n    return ''\n",
        "unknown parameter: model; known: scenario, tools, llm, client; write options of the agent after a `*`",
    ),
    "method_without_parameters": (
        "agent.py",
        "class run:\n    async def run(self, scenario):\n        return ''\n",
        "its method `run` should take (scenario, llm, tools), not (scenario): too many positional arguments (agent.py:2)",
    ),
    "import_error": ("agent.py", "\nimport langchian\n", "ModuleNotFoundError: No module named 'langchian' (agent.py:2)"),
    "syntax_error": ("agent.py", "async def run(scenario)\n    return ''\n", "SyntaxError: expected ':' (agent.py:1)"),
    "type_not_imported": ("agent.py", "async def run(scenario: Scenario):\n    return ''\n", "name 'Scenario' is not defined (agent.py:1)"),
    "function_misspelt": ("agent.py", "async def runn(scenario):\n    return ''\n", "does not define 'run'; it defines: runn"),
    "agent_missing": ("helper.py", "", "FileNotFoundError: there is no file "),
    "exchanged": (
        "scorers.py",
        "def score(rollout, scenario):\n    return 1.0\n",
        "scorer './scorers.py:score' should take (scenario, rollout) in this order, not (rollout, scenario) (scorers.py:1)",
    ),
    "one_parameter": (
        "scorers.py",
        "def score(rollout):\n    return 1.0\n",
        "scorer './scorers.py:score' should take (scenario, rollout), not (rollout): too many positional arguments (scorers.py:1)",
    ),
    "number": ("scorers.py", "score = 0.5\n", "scorer './scorers.py:score' is a float, must be a function (scenario, rollout) -> Score"),
}

BASE = {
    "dataset": "dataset: {format: agent-leaderboard, file: data.json}",
    "agent": "agent: {kind: tool_calling}",
    "scorers": "scorers: [tsq]",
    "thresholds": "thresholds: {tsq: 0.5}",
}

#: Maps a mistake to lines of suite.yaml that replace those of the same key (they begin in line 5), and the sentence about it.
YAML = {
    "misspelt_key": ("treshold: {tsq: 0.5}", "suite.yaml: unknown key 'treshold' (did you mean 'thresholds'?); known keys: name, "),
    "agent_as_text": (
        "agent: tool_calling",
        "suite.yaml: agent: must be a mapping of keys, such as {kind: tool_calling}, not 'tool_calling'",
    ),
    "agent_empty": ("agent:", "suite.yaml: agent: must be a mapping of keys, such as {kind: tool_calling}, and is empty"),
    "agent_as_file": ("agent: {kind: agent.py}", "or an import path such as ./agent.py:NAME, where NAME is defined in that file"),
    "agent_with_dot": ("agent: {kind: agent.run}", "or an import path such as agent:run"),
    "scorers_as_text": ("scorers: tsq", "suite.yaml: scorers: must be a list of scorers, such as [tsq], or a mapping of scorers to "),
    "scorer_as_switch": ("scorers: {tsq: true}", "suite.yaml: scorers.tsq: must be a mapping of keys, not True"),
    "threshold_in_percent": ("thresholds: {tsq: 85%}", "suite.yaml: thresholds.tsq: must be a number, not '85%'"),
    "threshold_alone": ("thresholds: 0.5", "suite.yaml: thresholds: must be a mapping of keys, such as {tsq: 0.5}, not 0.5"),
    "trials_in_words": ("trials: three", "suite.yaml: trials: must be a whole number, not 'three'"),
    "data_misspelt": (
        "dataset: {format: agent-leaderboard, file: dta.json}",
        "/data_misspelt/dta.json does not exist (did you mean 'data.json'?); see the suite's README.md for where it comes from",
    ),
    "data_as_text": (
        "dataset: data.json",
        "suite.yaml: dataset: must be a mapping of keys, such as {format: agent-leaderboard, file: data.json}, not 'data.json'",
    ),
    "tab": ("agent:\n\tkind: tool_calling", "suite.yaml:6: not valid YAML: the line is indented with a tab; use spaces"),
    "sign": ("description: @shop", "suite.yaml:6: not valid YAML: a text cannot begin with '@'; put it in quotes"),
    "no_space": (
        "trials:3\ntimeout: 60",
        "suite.yaml:6: not valid YAML: could not find expected ':'; write `key: value`, with a space after the colon",
    ),
    "two_colons": (
        "description: shop: lamps",
        "suite.yaml:6: not valid YAML: mapping values are not allowed in this context; put a text that",
    ),
    "open_quote": ("description: 'lamps", "suite.yaml:6: not valid YAML: found unexpected end of stream; close the quote that begins here"),
    "indentation": (
        "agent:\n   kind: react\n  max_turns: 3",
        "suite.yaml:7: not valid YAML: did not find expected key; indent the keys of",
    ),
}


def test_mistakes_that_show_before_a_rollout(project: Project) -> None:
    """A mistake in suite.yaml, or in the definition of an agent or a scorer, is a collection error: file and key, or file and line."""
    for name, (file, code, _) in CODE.items():
        own = {"scorers": ["./scorers.py:score"], "thresholds": {}} if file == "scorers.py" else {"agent": {"kind": "./agent.py:run"}}
        project.suite(name, scenarios=1, **own)
        project.write(f"scenarios/{name}/{file}", code)
    for name, (lines, _) in YAML.items():
        project.suite(name, scenarios=1)
        others = [line for key, line in BASE.items() if key != lines.partition(":")[0]]
        first = [f"name: {name}", *others][:5]
        project.write(f"scenarios/{name}/suite.yaml", "\n".join([*first, lines, ""]))
    project.suite("null", scenarios=1)
    project.write("scenarios/null/suite.yaml", "\n".join(["name: null_options", *BASE.values()]).replace("[tsq]", "{tsq: }") + "\n")

    result = project.run("--continue-on-collection-errors", "scenarios")

    output = result.stdout.str()
    sentences = [sentence for *_, sentence in (*CODE.values(), *YAML.values())]
    assert [] == [sentence for sentence in sentences if sentence not in output]
    result.assert_outcomes(passed=1, errors=len(sentences))  # A scorer without a value after its colon has no options.
    assert "Traceback" not in output + result.stderr.str()


#: Maps a mistake to backend.yaml, where HOST stands for a server without this URL, and the sentence about it.
BACKENDS = {
    "without_scheme": (
        "kind: url\nurl: 127.0.0.1:8000/v1\n",
        "backends/shop.yaml: url: must start with http:// or https://, not '127.0.0.1",
    ),
    "without_v1": ("kind: url\nurl: HOST\n", "It usually ends in /v1: try HOST/v1"),
    "v1_twice": ("kind: url\nurl: HOST/v1/v1\n", "/v1 is in the URL twice; try HOST/v1"),
    "whole_url": ("kind: url\nurl: HOST/v1/chat/completions\n", "the base URL is the part before /chat/completions: HOST/v1"),
    "key_not_set": (
        "kind: url\nurl: HOST/v1\napi_key_env: SHOP_KEY\n",
        "backend 'shop' needs its key in the environment variable SHOP_KEY, which is not set",
    ),
    "key_in_the_file": (
        "kind: url\nurl: HOST/v1\napi_key: sk-12\n",
        "backends/shop.yaml: unknown key 'api_key' (did you mean 'api_key_env'?)",
    ),
    "misspelt_kind": (
        "kind: openai\nurl: HOST/v1\n",
        "backends/shop.yaml: kind must be one of embedded, url, stack, recorded, not 'openai'",
    ),
    "headers_as_text": ("kind: url\nurl: HOST/v1\nheaders: 'x: y'\n", "backends/shop.yaml: headers: must be a mapping of keys, not 'x: y'"),
    "tab": ("kind: url\n\turl: HOST/v1\n", "backends/shop.yaml:2: not valid YAML: the line is indented with a tab; use spaces"),
    "misspelt_name": (None, "no backend 'shop'; known: "),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", BACKENDS)
def test_mistakes_in_a_backend(project: Project, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in a backend's YAML names the file and the key, or the request, and what would work."""
    monkeypatch.delenv("SHOP_KEY", raising=False)
    text, sentence = BACKENDS[mistake]
    project.suite(scenarios=1)
    with ExitStack() as servers:
        host = servers.enter_context(web_server(404, b"not here")).removesuffix("/v1")
        if text is not None:
            project.write("backends/shop.yaml", text.replace("HOST", host))

        result = project.run("--agentbench-backend=shop", "scenarios/shop")

    assert sentence.replace("HOST", host) in result.stdout.str() + result.stderr.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


@pytest.mark.slow
def test_a_result_that_is_encoded_twice(project: Project) -> None:
    """A result of `tools.call` to which an agent applies json.dumps is a warning in the log of its rollout, with `llm.chat` and without."""
    encoded = "import json" + LOOP.replace('"content": result', '"content": json.dumps(result)')
    client = encoded.replace("llm, tools", "llm, client, tools").replace(
        "reply = await llm.chat(messages, tools.schemas)",
        "reply = (await client.chat.completions.create(model=llm.model, messages=messages, tools=tools.schemas)).choices[0]",
    )
    client = client.replace("reply.message)", "reply.message.model_dump(exclude_none=True))").replace("reply.text", "reply.message.content")
    client = client.replace("reply.tool_calls", "reply.message.tool_calls").replace(
        "call.name, call.arg", "call.function.name, call.function.arg"
    )
    for name, code in {"encoded": encoded, "client": client, "right": LOOP}.items():
        project.suite(name, scenarios=1, agent={"kind": "./agent.py:run"})
        project.write(f"scenarios/{name}/agent.py", code)

    project.run("scenarios").assert_outcomes(passed=3)

    warning = 'json.dumps was applied to it, so the model got "{'
    assert {"encoded": True, "client": True, "right": False} == {each.suite: warning in each.log for each in project.rollouts}


@pytest.mark.slow
def test_a_wrong_model_name(project: Project) -> None:
    """A model that the backend does not serve is named with those that it serves, in the backend's YAML and in the agent's request."""
    project.suite("asked", scenarios=1, agent={"kind": "./agent.py:run"})
    project.write(
        "scenarios/asked/agent.py",
        "async def run(client, scenario):\n"
        "    answer = await client.chat.completions.create(model='gpt-4o', messages=[*scenario.messages])\n"
        "    return answer.choices[0].message.content\n",
    )
    with web_server(200, json.dumps({"data": [{"id": "lamp-7b"}]}).encode()) as url:
        project.write("backends/shop.yaml", f"kind: url\nurl: {url}\nmodel: lamp-70b\n")

        listed = project.run("--agentbench-backend=shop", "scenarios/asked").stdout.str()
        project.run("scenarios/asked")

    assert "does not serve 'lamp-70b'; it lists: lamp-7b" in listed
    (rollout,) = project.rollouts
    served = "this server has 'embedded-script'; send `model=llm.model`, which is 'embedded-script'"
    assert f"The model 'gpt-4o' does not exist; {served}; the agent then ended with" in rollout.reason
    assert "(agent.py:2)" in rollout.reason
