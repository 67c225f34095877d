"""What the scorers of tool calls share: both sides by turn of the user, pairs of them, and F1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.records import Json, Rollout, Score, ToolCall
from pytest_agentbench.scorers.names import normalised

if TYPE_CHECKING:
    from pytest_agentbench.scenarios import Scenario, Tool

#: What two calls have in common that may be matched by their names: the user's turn (0 where labels know of none) and the tool.
Key = tuple[int, str]


class Wanted(NamedTuple):
    """An expected call."""

    key: Key
    name: str  # of the tool, as the label has it
    label: Json
    tool: Tool | None  # None when the scenario has no such tool


class Made(NamedTuple):
    """A call that the agent made."""

    key: Key
    name: str  # of the tool, as the model wrote it
    call: ToolCall


def both_sides(scenario: Scenario, rollout: Rollout) -> tuple[list[Wanted], list[Made]]:
    """The expected and the actual calls in their order. Where labels have turns, calls of different turns are never the same.

    A label without a turn belongs to the first one, where another label has one.
    """
    tools = {normalised(tool.name): tool for tool in scenario.tools}
    with_turns = any("turn" in label for label in scenario.expected)
    labels = [(int(label.get("turn", 1)) if with_turns else 0, str(label["tool"]), label) for label in scenario.expected]
    wanted = [Wanted((turn, normalised(name)), name, label, tools.get(normalised(name))) for turn, name, label in labels]
    made = [Made((call.user_turn if with_turns else 0, normalised(call.name)), call.name, call) for call in rollout.tool_calls]
    return sorted(wanted, key=lambda each: each.key[0]), sorted(made, key=lambda each: each.key[0])


def most_pairs(choices: Sequence[Sequence[int]]) -> dict[int, int]:
    """The largest number of pairs that share nothing: position -> one of its choices. Kuhn's augmenting paths."""
    taken: dict[int, int] = {}  # choice -> who has it

    def place(who: int, tried: set[int]) -> bool:
        """Finds a choice for somebody; whoever has it now looks for another one. As deep as there are expected calls, at most."""
        for choice in choices[who]:
            if choice not in tried:
                tried.add(choice)
                if choice not in taken or place(taken[choice], tried):
                    taken[choice] = who
                    return True
        return False

    for who in range(len(choices)):
        place(who, set())
    return {who: choice for choice, who in taken.items()}


def f1(expected: int, actual: int, matched: int, *remarks: str) -> Score:
    """2 x precision x recall / (precision + recall), with its parts; 1.0 where nothing is expected and nothing was done."""
    nothing_to_do = not expected and not actual
    precision = 1.0 if nothing_to_do else _ratio(matched, actual)
    recall = 1.0 if nothing_to_do else _ratio(matched, expected)
    return Score(
        1.0 if nothing_to_do else 2 * matched / (expected + actual),
        {"precision": precision, "recall": recall, "expected": expected, "actual": actual, "matched": matched},
        "; ".join([f"precision {precision:.2f}, recall {recall:.2f}", *remarks]),
    )


def beyond(calls: Iterable[Wanted | Made], others: Iterable[Key]) -> Iterator[str]:
    """Names of the calls that are left when each of the others has taken one of its kind."""
    left = Counter(others)
    for call in calls:
        left[call.key] -= 1
        if left[call.key] < 0:
            yield call.name


def listed(names: Iterable[str]) -> str:
    """`find_item, order_item (2 times)`, or `none`."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name or "''"] = counts.get(name or "''", 0) + 1
    return ", ".join(f"{name} ({count} times)" if count > 1 else name for name, count in counts.items()) or "none"


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
