"""Finds the mistakes of a rollout and assigns each a kind (KINDS). Scores say only how bad a rollout is, kinds suggest a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.scorers.arguments import accepted, faults
from pytest_agentbench.scorers.matching import normalised
from pytest_agentbench.scorers.repeated import identity

#: Kind -> its meaning, as shown to users. A rollout may have several kinds; the first ones explain most of the others.
KINDS: Mapping[str, str] = {
    "agent error": "the agent raised an error",
    "cut": "the rollout reached a limit: of turns, of time, or of the output tokens of its last call",
    "gave up": "tools were expected, and it called none",
    "loop": "it made one call with the same arguments three times or more",
    "malformed": "the arguments of a call could not be parsed",
    "unknown tool": "it called a tool that does not exist",
    "bad argument": "a call did not fit the tool's schema, or no call of an expected tool had the expected arguments",
    "wrong tool": "it called one tool where another was expected",
    "missing call": "it called neither an expected tool nor another one in its place",
    "extra call": "it called a tool besides those that were expected",
}

#: Scores that compare arguments. If a suite has none of them, its labels may contain placeholders, so arguments are not compared.
OF_ARGUMENTS = frozenset({"exact_match", "parameter_accuracy", "tsq_arguments"})

#: Scores that compare called tools with labels. For them, a scenario without labels expects no call.
OF_CHOICE = OF_ARGUMENTS | {"nat_compat", "tsq", "tsq_multiset", "tsq_ordered", "tsq_subset", "tsq_superset"}

LOOP = 3  # number of equal calls that count as a loop


class Mistake(NamedTuple):
    """A mistake in a rollout."""

    kind: str  # one of KINDS
    expected: tuple[str, ...] = ()  # expected tools: all missing ones if the kind is `gave up`, otherwise at most one
    actual: str = ""  # tool that was called
    detail: str = ""  # fault of the arguments, or reason for the end of the rollout


def mistakes(rollout: Rollout) -> Iterator[Mistake]:
    """Yields the mistakes of a rollout. Yields none if it was not measured, for example because of an infrastructure error."""
    if rollout.status == "agent_error":
        yield Mistake("agent error", detail=rollout.reason)
    elif rollout.evaluable:
        yield from _of_its_end(rollout)
        yield from _of_its_calls(rollout)
        if has_labels(rollout):
            yield from _of_its_choice(rollout)


def has_labels(rollout: Rollout) -> bool:
    """Returns whether it is known which tools are right: from labels, or because a score treats missing labels as "no tool".

    Otherwise the agent may choose its tools freely, for example an orchestrator or a terminal agent in a sandbox.
    """
    return bool(rollout.expected or OF_CHOICE & rollout.scores.keys())


def _of_its_end(rollout: Rollout) -> Iterator[Mistake]:
    if rollout.status == "limit":
        yield Mistake("cut", detail=rollout.reason)
    elif rollout.calls and rollout.calls[-1].finish_reason == "length":
        yield Mistake("cut", detail="the last call ended at its limit of output tokens")


def _of_its_calls(rollout: Rollout) -> Iterator[Mistake]:
    times = Counter(map(identity, rollout.tool_calls))
    yield from (Mistake("loop", actual=name, detail=f"{count} times") for (name, _), count in times.items() if count >= LOOP)
    kinds = {"malformed_arguments": "malformed", "unknown_tool": "unknown tool", "invalid_arguments": "bad argument"}
    yield from (Mistake(kinds[call.problem], actual=call.name, detail=call.detail) for call in rollout.tool_calls if call.problem)
    if OF_ARGUMENTS & rollout.scores.keys():
        yield from _of_arguments(rollout)


def _of_arguments(rollout: Rollout) -> Iterator[Mistake]:
    """Yields a mistake for each label whose tool was called, but never with the right arguments.

    It describes the valid call with the fewest wrong arguments. Labels without arguments are skipped.
    """
    for label in rollout.expected:
        calls = [call for call in rollout.tool_calls if normalised(call.name) == normalised(str(label["tool"])) and not call.problem]
        if accepted(label) and calls and (wrong := min((faults(call, label) for call in calls), key=len)):
            yield Mistake("bad argument", (str(label["tool"]),), calls[0].name, "; ".join(dict.fromkeys(wrong.values())))


def _of_its_choice(rollout: Rollout) -> Iterator[Mistake]:
    """Yields mistakes in the choice of tools. Repeated calls of a tool count once, as for `tsq`.

    The first missing tool and the first unexpected one make one `wrong tool`, and so on. The rest are missing or extra calls.
    """
    expected, actual = _distinct(rollout.expected), _distinct(rollout.tool_calls)
    missing = [name for key, name in expected.items() if key not in actual]
    extra = [name for key, name in actual.items() if key not in expected]
    if missing and not actual:
        yield Mistake("gave up", tuple(missing))
        return
    pairs = min(len(missing), len(extra))
    yield from (Mistake("wrong tool", (missing_name,), called) for missing_name, called in zip(missing, extra, strict=False))
    yield from (Mistake("missing call", (name,)) for name in missing[pairs:])
    yield from (Mistake("extra call", actual=name) for name in extra[pairs:])


def _distinct(calls: tuple[Json, ...] | tuple[ToolCall, ...]) -> dict[str, str]:
    """Returns the tools of calls in order of appearance, each once, as normalised name -> name as written."""
    names = (call.name if isinstance(call, ToolCall) else str(call["tool"]) for call in calls)
    return {normalised(name): name for name in names}
