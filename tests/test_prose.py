"""The prose of the project follows the rules that `tests/prose.py` can check without false alarms."""

from __future__ import annotations

import pytest

from tests.prose import PROVEN, WAIVERS, Hit, hits, python_hits

SUSPICIOUS = '''
def size():
    """The same for a file. Nobody has read it yet."""
    # Of those that were counted.
    raise ValueError("whoever asked is told")
'''


def test_rules_hold() -> None:
    """Docstrings, comments, messages and pages have no imaginary persons, need no neighbours and do not begin with "Of"."""
    broken = [hit for hit in hits(PROVEN) if not any(part in hit.text for part in WAIVERS)]

    assert [] == [f"{hit.path}:{hit.line}: {hit.rule}: {hit.text}" for hit in broken]


def test_waivers_are_few_and_needed() -> None:
    """There are at most twenty exceptions, each has a reason, and each is still used."""
    texts = [hit.text for hit in hits(PROVEN)]

    assert len(WAIVERS) <= 20
    assert all(WAIVERS.values())
    assert [] == [part for part in WAIVERS if not any(part in text for text in texts)]


@pytest.mark.parametrize(("rule", "kind"), [("R5", "docstring"), ("R2", "docstring"), ("R2", "message")])
def test_suspicious_sentences_are_found(rule: str, kind: str) -> None:
    """The check finds suspicious docstrings and messages."""
    assert (rule, kind) in {(hit.rule, hit.kind) for hit in python_hits("example.py", SUSPICIOUS) if isinstance(hit, Hit)}
