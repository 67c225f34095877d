"""The sentence for a misspelt name."""

from __future__ import annotations

from pytest_agentbench.errors import unknown_name


def test_unknown_name_lists_the_known_ones() -> None:
    """Known names are listed in order, whatever holds them; none is said too."""
    assert "no scorer 'tqs'; known: nat_compat, tsq" == unknown_name("scorer", "tqs", {"tsq": 1, "nat_compat": 2})
    assert "no tool ''; known: a, b" == unknown_name("tool", "", {"b", "a"})
    assert "no policy 'x'; known: none" == unknown_name("policy", "x", ())
    assert "no agent 'x'; known: an import path" == unknown_name("agent", "x", iter(["an import path"]))
