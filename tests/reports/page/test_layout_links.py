"""Addresses of rollouts on the page, by the names in a report."""

from __future__ import annotations

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.reports.page.layout import RolloutLinks


def test_names_of_a_rollout() -> None:
    """A rollout is named by its key, its id or its scenario. The name of a scenario leads to its first trial."""
    found = RolloutLinks(
        [RolloutKey("shop", name, variant, trial) for trial in (2, 1) for name, variant in (("a", "default"), ("b", "careful"))]
    )

    assert ["#shop/a", "#shop/a-t2", "#shop/a-t2"] == [found.of(name) for name in ("a", "a-t2", "shop[a-t2]")]
    assert ["#shop/b-careful"] * 3 == [found.of(name) for name in ("b", "b-careful", "shop[b-careful]")]
    assert "" == found.of("c")


def test_names_that_several_suites_have() -> None:
    """An ambiguous name leads to the suite of its section. Elsewhere it has no address, unless it contains the suite."""
    found = RolloutLinks([RolloutKey("shop", "a"), RolloutKey("bank", "a")])

    assert ["#shop/a", "#bank/a"] == [found.of("a", ("Suites", suite, "Every scenario")) for suite in ("shop", "bank")]
    assert ["", "", "#bank/a"] == [found.of("a"), found.of("a", ("Gate",)), found.of("bank[a]")]


def test_names_that_several_variants_have() -> None:
    """In the section of a variant, a name leads to its rollout."""
    found = RolloutLinks([RolloutKey("shop", "a", "old"), RolloutKey("shop", "a", "new")])

    assert ["#shop/a-old", "#shop/a-new"] == [found.of("a", ("Suites", group)) for group in ("shop-old", "shop-new")]


def test_special_characters_in_addresses() -> None:
    """Special characters are percent-encoded. Lone surrogates and very long names have no address."""
    names = ('a"b', "50 %", "\u00e4", "a/b#c", "\ud83d half", "x" * 1000)
    found = RolloutLinks([RolloutKey("shop", name) for name in names])

    assert ["#shop/a%22b", "#shop/50%20%25", "#shop/%C3%A4", "#shop/a/b%23c", "", ""] == [found.of(name) for name in names]
