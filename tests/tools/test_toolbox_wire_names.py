"""Tools with names that APIs refuse are called by other names, but recorded under their own."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_agentbench.suites.suite import Tool
from pytest_agentbench.tools.toolbox import Toolbox, wire_names

RULE = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # OpenAI's
NAMES = st.lists(st.one_of(st.text("ab._2", max_size=4), st.text(), st.text("a.", min_size=62, max_size=70)), unique=True)


@given(NAMES)
@example(["a.b", "a_b", "a_b_2", "a/b"])
@example(["a" * 65, "a" * 66, "a" * 64])
@example(["", "_", "."])
def test_names_there_and_back(names: list[str]) -> None:
    """Every name gets a unique valid name, which leads back to it. A valid name stays unchanged."""
    wire = wire_names(names)

    assert names == [*wire]
    assert len(names) == len(set(wire.values()))
    assert [] == [name for name in wire.values() if not RULE.fullmatch(name)]
    assert [] == [name for name in names if RULE.fullmatch(name) and wire[name] != name]
    tools = Toolbox([Tool(name, "", {"type": "object"}) for name in names])
    calls = [tools.parse_call(schema["function"]["name"], "{}", 1) for schema in tools.schemas]
    assert [(name, None) for name in names] == [(call.name, call.problem) for call in calls]


async def test_the_data_sets_name_is_understood_and_recorded() -> None:
    """A model may call a tool by either name. An unknown name is recorded as written."""
    tools = Toolbox([Tool("math.factorial", "", {"type": "object"}), Tool("math_factorial", "", {"type": "object"})])

    for name in ("math_factorial_2", "math.factorial", "math_factorial", "math-factorial"):
        await tools.call(name, "{}", 1)

    assert ["math_factorial_2", "math_factorial"] == [schema["function"]["name"] for schema in tools.schemas]
    assert ["math.factorial", "math.factorial", "math_factorial", "math-factorial"] == [call.name for call in tools.calls]
    assert [None, None, None, "unknown_tool"] == [call.problem for call in tools.calls]


def test_fresh_tools_have_the_same_names() -> None:
    """The tools of a further draft have the same names."""
    tools = Toolbox([Tool("a.b", "", {"type": "object"})])

    assert tools.schemas == tools.fresh().schemas
