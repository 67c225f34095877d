"""Imports the results of ToolOrchestra's HLE evaluation, a file `<id>.json` for each task, and converts rollouts to such files.

The directory of the results may also contain logs and token counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import Source
from pytest_agentbench.exports.files import dig, member, members
from pytest_agentbench.lib.json_text import json_in, read_json_file, read_text
from pytest_agentbench.records import SHARE, UNDECLARED, Json, Rollout, Score, ToolCall
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.pass_rates import PassThreshold

ANSWER = "answer"  # the tool that ends a task


def task(rollout: Rollout, run: Run) -> Json:
    """Converts a rollout to the content of a task's file. The answer of the rollout becomes the prediction of the tool `answer`."""
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
    """Returns whether the rollout's main score reaches its threshold or, if the suite has none, the best possible score."""
    suite = run.suites.get(rollout.key.group)
    main = suite.main_score if suite and suite.scorers else next(iter(rollout.scores), "")
    scale = suite.scales[main] if suite and suite.scorers else UNDECLARED
    whole = 1.0 if scale.best is None else scale.best
    pass_threshold = PassThreshold(main, suite.passes.floor if suite and suite.passes else whole, scale.falling)
    return main in rollout.scores and pass_threshold.reached(float(rollout.scores[main]))


def _is_broken(rollout: Rollout) -> bool:
    return rollout.status in ("infra_error", "agent_error")


def _rounds(tools: Sequence[ToolCall]) -> Iterator[list[Any]]:
    """Yields the list of tool calls of each round (one model answer). A text about the error stands for an invalid call."""
    turns: defaultdict[int, list[Any]] = defaultdict(list)
    for tool in tools:
        turns[tool.turn].append([{"name": tool.name, "arguments": tool.arguments}] if tool.ran else tool.detail)
    yield from (turns[turn] for turn in sorted(turns))


def _responses(rollout: Rollout, correct: bool) -> Json:
    """Returns `turn_<round>_response` -> tools that ran in the round. Rounds count from 0. The last tool `answer` has the prediction."""
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
    """Returns `turn_<round>_message` -> text and calls of the model, for rounds in which a tool ran. Texts are None if any is unknown."""
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


SCORE = "toolorchestra_correct"
NEEDED = ("id", "problem", "all_tool_calls", "correct", "status")
USAGE = "orchestrator_usage.jsonl"
STARTED = re.compile(r"\[PROFILE\] .{0,400}type=run_start .{0,400}?concurrency=(\d+)")
TRIAL = re.compile(r"trial_(\d+)")  # a directory of an export, with the tasks of a later trial
ENDED = re.compile(r"\[HLE_TRIAL_COMPLETE\] .{0,400}ts_unix=([\d.]+) task_id=(\S+)")

STOPWATCH = "ToolOrchestra writes no time to its results"
NOTES = (
    "the results have no times and no tokens of a task, so there are no calls, no latencies and no throughput",
    "a task that was aborted leaves no file, and the number of planned tasks is not recorded, so the mean is over those that ended",
    "a round without an answer of the model is not recorded, so failures of the backend cannot be told from failures of the agent",
    "`correct` is an exact match unless HLE_ENABLE_JUDGE was 1, which is not recorded",
)


def read(path: Path) -> Source:
    """Reads the results in a directory, or in the only directory below it that has results.

    Raises ConfigError if there are none, or if several directories below have results.
    """
    notes = list(NOTES)
    tasks = _tasks(path, notes)
    logs = [file for file in sorted(path.rglob("*.log")) if file.is_file()]
    concurrency = _concurrency(logs, {file.stem for _, file in tasks}, notes)
    facts = _usage(sorted(path.rglob(USAGE)), notes)
    return Source(
        suite="hle",
        scores=[SCORE],
        rollouts=_rollouts(tasks),
        stopwatch=STOPWATCH,
        planned=len(tasks),
        notes=notes,
        agents={"default": {"kind": "toolorchestra"}},
        model=facts.pop("model", None),
        concurrency=concurrency,
        facts=facts,
        scales={SCORE: SHARE},
    )


def _tasks(path: Path, notes: list[str]) -> Sequence[tuple[int, Path]]:
    """Returns (trial, file) for each task's file below a directory. Other JSON files, such as configurations, are skipped."""
    runs: dict[Path, list[tuple[int, Path]]] = {}
    for file in sorted(path.rglob("*.json")):
        if not any(part.startswith(("step_", "answer_cache")) for part in file.relative_to(path).parts[:-1]) and _is_task(file):
            trial = TRIAL.fullmatch(file.parent.name)
            run, number = (file.parent.parent, int(trial[1])) if trial else (file.parent, 1)
            runs.setdefault(run, []).append((number, file))
    if not runs:
        raise ConfigError(f"{path}: contains no result of a task (a JSON object with {', '.join(NEEDED)}); name another directory")
    chosen = path if path in runs else min(runs)
    if others := sorted(runs.keys() - {chosen}):
        if chosen != path:
            raise ConfigError(f"{path}: {len(runs)} directories in it have results, but a run has one; name one of them, such as {chosen}")
        notes.append(f"left out: {len(others)} directories below have results of their own, such as {others[0].relative_to(path)}")
    return sorted(runs[chosen])


def _is_task(file: Path) -> bool:
    data = read_json_file(file)  # a truncated file is an error: its task must not go missing silently
    return isinstance(data, dict) and all(key in data for key in NEEDED)


def _rollouts(tasks: Sequence[tuple[int, Path]]) -> Iterator[Rollout]:
    for trial, file in tasks:
        task = read_json_file(file)
        rounds = member(task, "all_tool_calls", list, file) or []
        status, reason = outcome(task | {"all_tool_calls": rounds})
        if not isinstance(task["correct"], bool):
            raise ConfigError(f"{file}: the key 'correct' is {task['correct']!r}, must be true or false")
        measured = status in ("ok", "limit")
        yield Rollout(
            suite="",
            scenario=str(task["id"]),
            variant="default",
            trial=trial,
            status=status,
            reason=reason,
            tool_calls=tuple(_tool_calls(rounds)),
            answer=_answer(member(task, "all_tool_responses", dict, file) or {}, file),
            reference=task.get("answer") if isinstance(task.get("answer"), str) and task["answer"] else None,
            turns=len(rounds),
            messages=({"role": "user", "content": str(task["problem"])},),
            scores={SCORE: Score(task["correct"])} if measured else {},
        )


def outcome(task: Json) -> tuple[str, str]:
    """Returns (status, reason) of a rollout for a task. Tasks end by the tool `answer`, an error of a tool, or after their last round.

    Every round in which the model answered leaves an entry in `all_tool_calls`. If there is none, the model never answered.
    """
    if task["status"] == "error":
        return "infra_error", f"a tool failed: {task.get('error_type') or 'no error_type was recorded'}"
    if not task["all_tool_calls"]:
        return "infra_error", "the model answered in no round"
    if not any(call.name == "answer" and not call.problem for call in _tool_calls(task["all_tool_calls"])):
        return "limit", f"turns: no answer after {len(task['all_tool_calls'])} rounds in which the model answered"
    return "ok", ""


def _tool_calls(rounds: Sequence[object]) -> Iterator[ToolCall]:
    """Converts the tool calls of all rounds. In a round, each call is `[{name, arguments}]`, or a text if it was invalid."""
    for turn, made in enumerate(rounds, 1):
        for each in made if isinstance(made, list) else ():
            if isinstance(each, list) and each and isinstance(each[0], dict):
                yield ToolCall(str(each[0].get("name", "")), each[0].get("arguments") or {}, turn)
            elif isinstance(each, str):
                yield ToolCall("", {}, turn, problem="invalid_arguments", detail=each)


def _answer(turns: Json, file: Path) -> str:
    """Returns the agent's answer: the key `pred` of the last response of the tool `answer`. The file's own key `answer` is the label."""
    given = [response for turn in turns for response in members(turns, turn, file) if dig(response, "tool") == "answer"]
    return str(dig(given[-1], "pred") or "") if given else ""


def _concurrency(logs: Sequence[Path], ids: set[str], notes: list[str]) -> int | None:
    """Returns the concurrency that the logs mention, or None. Adds a note about tasks that ended according to a log but have no file."""
    concurrency: int | None = None
    ended: set[str] = set()
    for log in logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if match := STARTED.search(line):
                    concurrency = int(match[1])
                elif match := ENDED.search(line):
                    ended.add(match[2])
    if lost := sorted(ended - ids):
        notes.append(f"according to the logs, {len(lost)} tasks ended that have no file, such as {lost[0]}")
    return concurrency


def _usage(files: Sequence[Path], notes: list[str]) -> Json:
    """Returns the model, and the sums of the token counts in the first of ToolOrchestra's files of token counts.

    Adds notes on what is uncertain: the file does not say for which tasks it counts, and may lack counts of cached tokens.
    """
    if not files:
        return {}
    totals = dict.fromkeys(("calls", "prompt_tokens", "completion_tokens", "cached_tokens"), 0)
    models, inferred = set[str](), 0
    for number, line in enumerate(read_text(files[0]).splitlines(), 1):
        record = json_in(files[0], line, number)
        if not isinstance(record, dict):
            raise ConfigError(f"{files[0]}:{number}: must be a JSON object")
        totals["calls"] += 1
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            totals[name] += record.get(name) or 0
        inferred += bool(record.get("cached_tokens_inferred"))
        models.add(str(record.get("model")))
    notes.append(
        f"{files[0].name} counts {totals['calls']} calls, {totals['prompt_tokens']:,} prompt tokens and {totals['completion_tokens']:,} "
        "completion tokens, and does not say for which tasks"
    )
    if inferred:
        notes.append(f"for {inferred} of them the server did not say what was cached, and ToolOrchestra wrote 0")
    return {**totals, "cached_tokens": None if inferred else totals["cached_tokens"], "model": ", ".join(sorted(models)) or None}
