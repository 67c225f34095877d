"""The part of `agentbench show` that prints single rollouts: one of them, or those that failed."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from pytest_agentbench.records import Rollout, RolloutKey
    from pytest_agentbench.runs.conversations import Conversations
    from pytest_agentbench.runs.judgement import Judge
    from pytest_agentbench.runs.run_file import Run


def test_id(key: RolloutKey) -> str:
    """Returns the id of a rollout's test: `banking-017-rethinking-t2` of `banking[banking-017-rethinking-t2]`."""
    return str(key)[len(key.suite) + 1 : -1]


def show_rollout(directory: Path, shown: str, name: str, *, as_json: bool) -> None:
    """Prints one rollout, or a JSON object for each of its calls. `shown` is the path of the run for readers."""
    from pytest_agentbench.reports.rollout_text import call_as_json, calls_of, rollout_text
    from pytest_agentbench.runs.conversations import Conversations

    rollout = find_rollout(directory, name)
    if as_json:
        conversations = Conversations(directory)
        for attempt, call in calls_of(rollout):
            print(json.dumps(call_as_json(conversations, attempt, call), ensure_ascii=False))
        return
    for line in rollout_text(rollout, _conversations(directory), shown):
        print(line)


def _conversations(directory: Path) -> Conversations | None:
    from pytest_agentbench.runs.conversations import Conversations

    try:
        return Conversations(directory)
    except ConfigError:
        return None


def find_rollout(directory: Path, name: str) -> Rollout:
    """Returns a rollout by the id of its test, by `suite/ID`, or as reports and pytest write it: `suite[ID]`, `...::test[ID]`.

    Raises ConfigError with the names that are similar if there is none, and with the suites if there are several.
    """
    from pytest_agentbench.runs.journal import check_journal, read_index, read_journal

    check_journal(directory)
    keys = [*read_index(directory).entries]
    names: dict[str, list[RolloutKey]] = defaultdict(list)
    for key in keys:
        for each in {test_id(key), f"{key.suite}/{test_id(key)}", str(key)}:
            names[each].append(key)
    wanted = name.rpartition("::")[2].partition("[")[2].removesuffix("]") if "::" in name else name
    if wanted not in names:
        raise ConfigError(f"{directory}: {unknown_name('rollout', wanted, sorted(map(test_id, keys)))}")
    if len(found := names[wanted]) > 1:
        raise ConfigError(f"{directory}: several suites have {wanted}; name one of {', '.join(f'{key.suite}/{wanted}' for key in found)}")
    return next(rollout for rollout in read_journal(directory) if rollout.key == found[0])


def show_failed(directory: Path, run: Run, shown: str) -> None:
    """Prints the rollouts that failed, each with the command that prints the whole rollout, and their number."""
    from pytest_agentbench.reports.phrases import count
    from pytest_agentbench.reports.rollout_text import brief_text
    from pytest_agentbench.runs.journal import check_journal, read_journal
    from pytest_agentbench.runs.judgement import Judge

    check_journal(directory)
    judge = Judge.of(run)
    rollouts = [rollout for rollout in read_journal(directory) if rollout.kind == "scenario"]
    ids = [test_id(rollout.key) for rollout in rollouts]
    failed = [each for each in rollouts if has_failed(each, judge)]
    for rollout in sorted(failed, key=lambda each: each.key):
        id = test_id(rollout.key)
        name = id if ids.count(id) == 1 else f"{rollout.suite}/{id}"
        print("\n".join(brief_text(rollout, shlex.join(["agentbench", "show", shown, name]))))
    print(f"{len(failed):,} of {count(len(rollouts), 'rollout')} failed")


def has_failed(rollout: Rollout, judge: Judge) -> bool:
    """Returns whether a rollout did not end as `ok`, lacks a score, misses a threshold, or has a failed test."""
    return rollout.status != "ok" or bool(rollout.score_errors) or judge.judge(rollout).passed is False
