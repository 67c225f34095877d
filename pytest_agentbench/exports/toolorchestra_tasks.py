"""The file of a task as the HLE evaluation of ToolOrchestra writes it: what the agent called, what it answered, and the right answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_agentbench.records import UNDECLARED, Json, Rollout, ToolCall
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.stats.pass_rates import Bar

ANSWER = "answer"  # the tool that ends a task


def task(rollout: Rollout, run: Run) -> Json:
    """Returns a task's file. The text that ends a rollout is the prediction of the tool `answer`, which ends a task."""
    questions = [message.get("content") for message in rollout.messages if message.get("role") == "user"]
    rounds, correct = [*_rounds(rollout.tool_calls)], is_correct(rollout, run)
    if rollout.status == "ok" and ANSWER not in rollout.tools:
        rounds.append([[{"name": ANSWER, "arguments": {}}]])
    made: Json = {
        "id": rollout.scenario,
        "problem": questions[0] if questions else "",
        "all_tool_calls": rounds,
        "all_tool_responses": _responses(rollout, correct),
        "answer": rollout.reference or "",
        "all_message_responses": _messages(rollout),
        "correct": correct,
        "status": "error" if _is_broken(rollout) else "done",
    }
    return made | ({"error_type": rollout.reason} if _is_broken(rollout) else {})


def is_correct(rollout: Rollout, run: Run) -> bool:
    """Whether the main score reaches the floor from which on a rollout passes; without one, whether it is whole."""
    suite = run.suites.get(rollout.key.group)
    main = suite.main_score if suite and suite.scorers else next(iter(rollout.scores), "")
    scale = suite.scales[main] if suite and suite.scorers else UNDECLARED
    whole = 1.0 if scale.best is None else scale.best
    bar = Bar(main, suite.passes.floor if suite and suite.passes else whole, scale.falling)
    return main in rollout.scores and bar.reached(float(rollout.scores[main]))


def _is_broken(rollout: Rollout) -> bool:
    return rollout.status in ("infra_error", "agent_error")


def _rounds(tools: Sequence[ToolCall]) -> Iterator[list[Any]]:
    """The calls of each round; one that made no sense is a text about it."""
    turns: defaultdict[int, list[Any]] = defaultdict(list)
    for tool in tools:
        turns[tool.turn].append([{"name": tool.name, "arguments": tool.arguments}] if tool.ran else tool.detail)
    yield from (turns[turn] for turn in sorted(turns))


def _responses(rollout: Rollout, correct: bool) -> Json:
    """Returns the tools that ran in each round, and the prediction of the last `answer`. The first round is number 0."""
    rounds: defaultdict[int, list[Json]] = defaultdict(list)
    for call in rollout.tool_calls:
        if call.ran:
            rounds[call.turn].append({"tool": call.name})
    if rollout.answer and not _is_broken(rollout):
        answered = [call.turn for call in rollout.tool_calls if call.ran and call.name == ANSWER]
        last = rounds[answered[-1] if answered else max(rollout.turns, 1)]
        last[:] = [each for each in last if each["tool"] != ANSWER]
        last.append({"tool": ANSWER, "pred": rollout.answer, "correctness": correct, "answer": rollout.reference or ""})
    return {f"turn_{number - 1}_response": rounds[number] for number in sorted(rounds)}


def _messages(rollout: Rollout) -> Json:
    """Returns text and calls of the model for each round in which a tool ran. The text is null if the transcript lacks a round."""
    texts = [message.get("content") for message in rollout.messages if message.get("role") == "assistant"]
    spoken = texts if len(texts) == rollout.turns else []
    rounds: defaultdict[int, list[Json]] = defaultdict(list)
    for call in rollout.tool_calls:
        rounds[call.turn].append({"tool_name": call.name, "tool_arguments": call.arguments})
    ran = sorted({call.turn for call in rollout.tool_calls if call.ran})
    return {
        f"turn_{number - 1}_message": {"content": spoken[number - 1] if number <= len(spoken) else None, "tool_calls": rounds[number]}
        for number in ran
    }
