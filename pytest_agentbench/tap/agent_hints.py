"""Hints about a call that a backend's YAML gives to its router, in the two forms that routers read: fields of the body, and headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from pytest_agentbench.metrics.call_hints import HintRow
from pytest_agentbench.records import Json, ToldHints

#: Name of a hint -> its header. The Thompson router reads them, and so did the NeMo Agent Toolkit's router.
HEADERS = {"total_requests": "x-prefix-total-requests", "osl": "x-prefix-osl", "iat": "x-prefix-iat"}
PREFIX = "x-prefix-id"

#: Hint for which Dynamo sends a second request to an engine after the answer.
SPECULATIVE = "speculative_prefill"

#: Hints that Dynamo takes as fields of `nvext.agent_hints`. Dynamo 1.6.1 refuses all others there with HTTP 400.
FIELDS = ("priority", "strict_priority", "osl", SPECULATIVE)


@dataclass(frozen=True)
class Hints:
    """What a router is told about a call besides its session. None means that the router is not told."""

    priority: int | None = None  # higher ones leave the router's queue earlier
    strict_priority: int | None = None  # as `priority`, but the router compares it first
    osl: int | None = None  # expected output tokens of the call
    speculative_prefill: bool | None = None  # whether an engine gets prompt and answer as a second request after the answer
    total_requests: int | None = None  # expected calls of the session
    iat: int | None = None  # expected milliseconds from one call of the session to the next
    prefix: str | None = None  # template of the prefix id; None: the id of the session

    @property
    def names_prefix(self) -> bool:
        """Whether calls have the id of a prefix, which a Thompson router needs to know their session."""
        return (self.total_requests, self.iat, self.prefix) != (None, None, None)

    def as_fields(self, prefix: str) -> Json:
        """Returns the fields of `nvext` for Dynamo. `prefix` is the id of the prefix.

        Dynamo reads `agent_hints` itself, and hands `annotations` to a router behind its frontend.
        """
        agent_hints = {name: value for name in FIELDS if (value := getattr(self, name)) is not None}
        told = {"prefix_id": prefix, **self._of_prefix()} if self.names_prefix else {}
        annotations = [f"{name}:{value}" for name, value in told.items()]
        return {**({"agent_hints": agent_hints} if agent_hints else {}), **({"annotations": annotations} if annotations else {})}

    def as_headers(self, prefix: str) -> dict[str, str]:
        """Returns the headers for a router that reads `x-prefix-*`. `prefix` is the id of the prefix."""
        told = {HEADERS[name]: str(value) for name, value in self._of_prefix().items()}
        return {PREFIX: prefix, **told} if told or self.names_prefix else {}

    def expected(self, turn: int, usual_tokens: float | None = None, remaining: float | None = None) -> ToldHints | None:
        """Returns what these hints say about call number `turn` of a session, for the record of the call. None if they say nothing.

        The others are what a learnt table says besides the hints.
        """
        if remaining is None and self.total_requests is not None:
            remaining = max(0, self.total_requests - turn)
        said = ToldHints(self.osl, usual_tokens, remaining, self.iat)
        return None if said == ToldHints() else said

    def learnt(self, row: HintRow) -> Hints:
        """Returns these hints with what a learnt table says about a call. The table overrides them."""
        iat = self.iat if row.next_ms is None else max(1, round(row.next_ms))
        return replace(self, osl=max(1, round(row.tokens_p90)), total_requests=row.turn + round(row.remaining), iat=iat)

    def _of_prefix(self) -> dict[str, int]:
        return {name: value for name in HEADERS if (value := getattr(self, name)) is not None}


NO_HINTS = Hints()


def asks_for_prefill(body: Json) -> bool:
    """Returns whether a request asks Dynamo for a speculative prefill: a second request to an engine, with prompt and answer."""
    nvext = body.get("nvext")
    hints = nvext.get("agent_hints") if isinstance(nvext, dict) else None
    return isinstance(hints, dict) and hints.get(SPECULATIVE) is True


@dataclass(frozen=True)
class HintsOfRoles:
    """The hints for the calls of a rollout: those of the backend's YAML, and for some roles others."""

    own: Hints = NO_HINTS
    roles: Mapping[str, Json] = field(default_factory=dict)  # role -> hints that replace those of `own`
    table: Sequence[HintRow] = ()  # learnt hints, by role and turn; they override the others

    def of(self, role: str) -> Hints:
        """Returns the hints for the calls of a role. The agent itself is the role with an empty name."""
        others = self.roles.get(role, {})
        return Hints(**{each.name: others.get(each.name, getattr(self.own, each.name)) for each in fields(Hints)})

    def rows(self, role: str) -> list[HintRow]:
        """Returns the rows of the learnt table for a role, by turn. Empty if the table has none."""
        return [row for row in self.table if row.role == role]


NO_HINTS_OF_ROLES = HintsOfRoles()


def hints_of(options: Json) -> HintsOfRoles:
    """Returns the hints in the key `labels` of a backend's YAML."""
    own = Hints(**{each.name: options.get(each.name) for each in fields(Hints)})
    table = tuple(HintRow(**row) for row in options.get("table") or ())
    return HintsOfRoles(own, options.get("roles") or {}, table)
