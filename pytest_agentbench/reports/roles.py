"""What each role took, in lines and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_agentbench.metrics.roles import AGENT, RoleUse
from pytest_agentbench.reports.markup import code, prose, table
from pytest_agentbench.reports.words import costs_text, number
from pytest_agentbench.stats.percentiles import LatencySpread

HEADS = ["role", "model", "endpoint", "calls", "failed", "tokens", "TTFT p50, p95 ms", "E2E p50, p95 ms", "cost"]


def lines(roles: Mapping[str, RoleUse]) -> Iterator[tuple[str, str]]:
    """(role, a line) of each role but the agent's own."""
    for name, role in roles.items():
        if name != AGENT:
            failed = f" ({sum(role.failed_calls.values())} failed)" if role.failed_calls else ""
            cost = f", {text}" if (text := cost_text(role)) else ""
            timed = "all of it" if role.measured == role.calls else f"{role.measured} calls" if role.measured else "none of it"
            tokens = f"{role.prompt_tokens:,} + {role.output_tokens:,} tokens"
            yield name, f"{role.calls} calls{failed}, {tokens}, {role.seconds:.1f} s{cost}, {timed} in the timings of calls"


def markdown(roles: Mapping[str, RoleUse]) -> Iterator[str]:
    """The section of report.md; nothing where the agent called nobody but its own model."""
    if not roles:
        return
    yield "\n### Roles\n"
    yield from table(HEADS, [_row(name, role) for name, role in roles.items()])
    yield "\nServing metrics are of calls that reached the backend under test. Those to other endpoints, and judges', are here alone."


def cost_text(role: RoleUse) -> str:
    """`0.0123 USD`; empty without prices."""
    return costs_text({role.currency: role.cost}) if role.currency else ""


def _row(name: str, role: RoleUse) -> list[str]:
    failed = ", ".join(f"{count} {kind}" for kind, count in role.failed_calls.items())
    return [
        prose(name),
        code(", ".join(role.models)),
        ", ".join([*(["the backend"] if role.measured or not role.endpoints else []), *map(code, role.endpoints)]),
        str(role.calls),
        failed or "0",
        f"{role.prompt_tokens:,} ({role.cached_tokens:,} cached) + {role.output_tokens:,}",
        _spread(role.ttft_ms),
        _spread(role.e2e_ms),
        cost_text(role) or "-",
    ]


def _spread(spread: LatencySpread | None) -> str:
    return "-" if spread is None else f"{number(spread.p50)}, {'-' if spread.p95 is None else number(spread.p95)}"
