"""The slowest calls in report.md."""

from __future__ import annotations

from pytest_agentbench.reports import markdown, slow_calls
from tests.made_runs import run_of
from tests.tables.shop import ALL, LOST


def test_in_the_report() -> None:
    """report.md has a table of them: times, place in the attempt, tokens, how a call failed; and says where to read why."""
    section = "\n".join(markdown.lines(run_of(*ALL))).partition("### Slowest LLM calls\n\n")[2].partition("\n## ")[0].splitlines()

    assert [
        "| ms | rollout | call | queue | first token | decoding | prompt | cached | output | failed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 700.0 | `shop[shop-1]` | 1 of 1, attempt 2 | 0.0 | 400.0 | 300.0 | 100 | 60 | 2 |  |",
        "| 300.0 | `shop[shop-0]` | 2 of 2 | 0.0 | 200.0 | 100.0 | 100 | 60 | 1 |  |",
        "| 200.0 | `shop[shop-0]` | 1 of 2 | 0.0 | 100.0 | 100.0 | 100 | 60 | 3 |  |",
        "| 100.0 | `shop[shop-1]` | 1 of 1 | 0.0 | - | - | 100 | 60 | 0 | server_error |",
        "",
        f"Times are milliseconds, then tokens. {slow_calls.WHY}.",
    ] == section


def test_nothing_to_show() -> None:
    """A run without a call has no such section."""
    assert "Slowest" not in "\n".join(markdown.lines(run_of(LOST)))
