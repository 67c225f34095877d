"""Messages about misspelt names."""

from __future__ import annotations

import pytest

from pytest_agentbench.errors import did_you_mean, unknown_key, unknown_name


def test_unknown_name_lists_the_known_ones() -> None:
    """Known names are listed in order, for any kind of collection. If there are no known names, the message says so."""
    assert "no scorer 'tqs' (did you mean 'tsq'?); known: nat_compat, tsq" == unknown_name("scorer", "tqs", {"tsq": 1, "nat_compat": 2})
    assert "no tool ''; known: a, b" == unknown_name("tool", "", {"b", "a"})
    assert "no policy 'x'; known: none" == unknown_name("policy", "x", ())
    assert "no agent 'x'; known: an import path" == unknown_name("agent", "x", iter(["an import path"]))


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("tqs", ["nat_compat", "tsq"], " (did you mean 'tsq'?)"),
        ("tqs", ["tsq.mean", "ttft.p95"], " (did you mean 'tsq.mean'?)"),
        ("politeness", ["nat_compat", "tsq"], ""),
        ("x", [], ""),
    ],
)
def test_a_suggestion(name: str, known: list[str], message: str) -> None:
    """The known name that is most similar to a misspelt one is suggested, or none if no name is similar."""
    assert message == did_you_mean(name, known)


def test_an_unknown_key() -> None:
    """A key is compared without the path to it, and the known keys keep their order."""
    assert "unknown key 'dataset.fil' (did you mean 'file'?); known keys: format, file" == unknown_key("dataset.fil", ["format", "file"])
