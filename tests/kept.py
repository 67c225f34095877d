"""A check for tests that kill processes: messages.jsonl has everything to which the calls of a run refer."""

from __future__ import annotations

from pathlib import Path

from pytest_agentbench import Conversations, read_journal


def assert_all_kept(directory: Path) -> int:
    """Reads all requests, replies and transcripts of a run. Returns the number of calls.

    Calls that were not complete have no reply. Any other missing value raises NotKept.
    """
    conversations, count = Conversations(directory), 0
    for rollout in read_journal(directory):
        assert rollout.messages
        for attempt in rollout.attempts:
            for call in (*attempt.calls, *attempt.other_calls):
                count += 1
                assert conversations.is_exact(call)
                assert (call.error_kind is None) <= bool(call.kept and call.kept.reply)
                if call.kept is not None and call.kept.reply:
                    assert conversations.reply(call)
    return count
