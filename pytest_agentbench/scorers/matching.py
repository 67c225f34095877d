"""What a scenario expects, and how far it was met: expected answers, and matches of expected with actual calls. Shared code of scorers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_agentbench.records import Json, Rollout, Score, ToolCall

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario, Tool


def expected_answers(scenario: Scenario, answer: Any, key: str) -> list[Any]:
    """Returns the right answers: `answer`, an option of the scorer, or the value of `key` in the scenario's metadata. A list has several.

    Raises LookupError if there are none, so that the rollout gets no score instead of 0.
    """
    expected = scenario.metadata.get(key) if answer is None else answer
    answers = expected if isinstance(expected, list) else [expected]
    if not answers or any(each is None for each in answers):
        option = "or set the scorer's option, `answer` of exact and numeric or `pattern` of regex"
        raise LookupError(f"scenario {scenario.id} has no expected answer; add {key!r} to its metadata, {option}")
    return answers


def normalised(name: str) -> str:
    """Returns a name without its group prefix (up to the first `__`), case, `_`, `-` and outer spaces.

    `banking_tools__Get-Account-BALANCE` and `get_account_balance` are the same tool, and so are `a__search` and `b__search`.
    """
    group, separator, rest = name.partition("__")
    return (rest if separator else group).lower().strip().replace("_", "").replace("-", "")


#: The key by which calls are matched: the user's turn (0 if labels have no turns) and the normalised name of the tool.
CallKey = tuple[int, str]


class ExpectedCall(NamedTuple):
    """A call that the data set expects."""

    key: CallKey
    name: str  # name of the tool in the label
    label: Json
    tool: Tool | None  # None if the scenario has no such tool


class ActualCall(NamedTuple):
    """A call that the agent made."""

    key: CallKey
    name: str  # name of the tool as the model wrote it
    call: ToolCall


def expected_and_actual(scenario: Scenario, rollout: Rollout) -> tuple[list[ExpectedCall], list[ActualCall]]:
    """Returns the expected and the actual calls, sorted by user turn. If any label has a turn, calls of different turns never match.

    A label without a turn then belongs to the first turn.
    """
    tools = {normalised(tool.name): tool for tool in scenario.tools}
    with_turns = any("turn" in label for label in scenario.expected)
    labels = [(int(label.get("turn", 1)) if with_turns else 0, str(label["tool"]), label) for label in scenario.expected]
    expected = [ExpectedCall((turn, normalised(name)), name, label, tools.get(normalised(name))) for turn, name, label in labels]
    actual = [ActualCall((call.user_turn if with_turns else 0, normalised(call.name)), call.name, call) for call in rollout.tool_calls]
    return sorted(expected, key=lambda each: each.key[0]), sorted(actual, key=lambda each: each.key[0])


def most_pairs(choices: Sequence[Sequence[int]]) -> dict[int, int]:
    """Assigns as many rows as possible to a column each, such as expected calls to actual calls. Returns row -> its column.

    `choices` has the columns that each row may get. No column is used twice. The method is Kuhn's augmenting paths.
    """
    owners: dict[int, int] = {}  # column -> row that has it

    def place(row: int, tried: set[int]) -> bool:
        """Gives a row one of its columns, if possible, and returns whether that worked.

        A row that already has the column may be moved to another one. The recursion is at most as deep as the number of rows.
        """
        for choice in choices[row]:
            if choice not in tried:
                tried.add(choice)
                if choice not in owners or place(owners[choice], tried):
                    owners[choice] = row
                    return True
        return False

    for row in range(len(choices)):
        place(row, set())
    return {row: choice for choice, row in owners.items()}


def best_pairs(worths: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns as many (row, column) pairs as possible, no two in the same row or column, with the greatest total of `worths[row][column]`.

    Pairs are sorted by row. The method is the Hungarian method with shortest augmenting paths (Kuhn 1955; Jonker and Volgenant 1987). It
    takes rows^2 x columns steps, where rows is the smaller number. Worths are integers, so the result does not depend on rounding.
    """
    if not worths or not worths[0]:
        return []
    if len(worths) > len(worths[0]):
        return sorted((row, column) for column, row in best_pairs([*zip(*worths, strict=True)]))
    prices = [0] * (len(worths) + 1), [0] * (len(worths[0]) + 1)  # prices of rows and columns, both counted from 1; 0 stands for none
    owners = [0] * (len(worths[0]) + 1)  # column -> its row
    for row in range(1, len(worths) + 1):
        owners[0] = row
        _settle(worths, prices, owners)
    return sorted((row - 1, column - 1) for column, row in enumerate(owners) if row and column)


def _settle(worths: Sequence[Sequence[int]], prices: tuple[list[int], list[int]], owners: list[int]) -> None:
    """Adds one row, `owners[0]`, to the pairs of the Hungarian method: one step of `best_pairs`.

    Follows the shortest augmenting path, on which columns change their rows. Updates `owners` (column -> its row) and the
    prices of rows and columns: the dual variables of the method, by which paths are measured.
    """
    row_prices, column_prices = prices
    slack: list[float] = [math.inf] * len(owners)  # column -> its distance from the tree
    before = [0] * len(owners)  # column -> nearest column of the tree
    tree, outside, column = [0], [*range(1, len(owners))], 0
    while row := owners[column]:
        for each in outside:
            if (distance := -worths[row - 1][each - 1] - row_prices[row] - column_prices[each]) < slack[each]:
                slack[each], before[each] = distance, column
        column = min(outside, key=slack.__getitem__)
        step = int(slack[column])
        for each in tree:
            row_prices[owners[each]] += step
            column_prices[each] -= step
        for each in outside:
            slack[each] -= step
        outside.remove(column)
        tree.append(column)
    while column:
        owners[column] = owners[before[column]]
        column = before[column]


def f1(expected: int, actual: int, matched: int, *remarks: str) -> Score:
    """Returns the F1 score, 2 x precision x recall / (precision + recall), from numbers of calls. 1.0 if none is expected and none made."""
    nothing_to_do = not expected and not actual
    precision = 1.0 if nothing_to_do else _ratio(matched, actual)
    recall = 1.0 if nothing_to_do else _ratio(matched, expected)
    return Score(
        1.0 if nothing_to_do else 2 * matched / (expected + actual),
        {"precision": precision, "recall": recall, "expected": expected, "actual": actual, "matched": matched},
        "; ".join([f"precision {precision:.2f}, recall {recall:.2f}", *remarks]),
    )


def share_of_calls(expected: int, actual: int, matched: int, whole: int, remark: str) -> Score:
    """Returns the score `matched` / `whole`, or 1.0 if `whole` is 0.

    All are numbers of calls. The parts of the score are the numbers of expected, actual and matched calls.
    """
    parts = {"expected": expected, "actual": actual, "matched": matched}
    return Score(matched / whole if whole else 1.0, parts, f"{matched} of {whole}; {remark}")


def unmatched(calls: Iterable[ExpectedCall | ActualCall], others: Iterable[CallKey]) -> Iterator[str]:
    """Yields the names of the calls (expected or actual ones) that have no equal call on the other side.

    `others` has the keys (turn and name) of the calls there. Each of them matches only one call.
    """
    left = Counter(others)
    for call in calls:
        left[call.key] -= 1
        if left[call.key] < 0:
            yield call.name


def names_text(names: Iterable[str]) -> str:
    """Returns names as one text, for example `find_item, order_item (2 times)`, or `none`."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name or "''"] = counts.get(name or "''", 0) + 1
    return ", ".join(f"{name} ({count} times)" if count > 1 else name for name, count in counts.items()) or "none"


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
