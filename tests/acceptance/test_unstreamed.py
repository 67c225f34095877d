"""An agent whose calls are not streamed, as those of the openai client usually are: its reports claim nothing about first tokens."""

from __future__ import annotations

import pytest

from pytest_agentbench.cli import main
from tests.project import Project, page

AGENT = """
async def run(scenario, client, llm, tools):
    reply = await client.chat.completions.create(model=llm.model, messages=[*scenario.messages], tools=tools.schemas)
    call = reply.choices[0].message.tool_calls[0].function
    return await tools.call(call.name, call.arguments, 1)
"""


def test_without_streams(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The first page has E2E and says how TTFT is measured; failed tests and `show` wait for the answer. The option measures TTFT."""
    project.suite(agent={"kind": "./agent.py:run"}, test="def test_it(rollout):\n    assert not rollout.answer\n")
    project.write("scenarios/shop/agent.py", AGENT)

    result = project.run("scenarios/shop")
    capsys.readouterr()

    text = " ".join(" ".join(page(result)).split())
    assert "speed E2E " in text
    assert "no TTFT no call was streamed; --agentbench-set agent.stream_upgrade=true measures it" in text
    assert 0 == main(["show", str(project.directory), "shop-0"])
    shown = capsys.readouterr().out
    assert "offered     find_item, order_item, return_item" in shown
    assert "not run" not in shown
    assert "`-` waiting for the answer (no call was streamed)" in shown
    assert "first token" not in result.stdout.str() + shown
    result.stdout.re_match_lines([r"status +ok, 1 LLM call, .*", "time .*waiting for the answer .*"])

    upgraded = project.run("scenarios/shop", "--agentbench-set", "agent.stream_upgrade=true")

    assert "speed TTFT " in " ".join(" ".join(page(upgraded)).split())
