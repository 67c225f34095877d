"""sessions.jsonl: the sessions of a run, one line each, written when the session starts.

A session that resumes a run decides here which rollouts are kept and which run again, or refuses because of changes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.agents.factory import brings_code, make_agent, prompts_of
from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_text import bounded_json
from pytest_agentbench.records import Attempt, Json, RolloutKey
from pytest_agentbench.runs.directory import LATEST, runs_called
from pytest_agentbench.runs.journal import FILE, EarlierWork, Entry, Journal, earlier_work, record_line, rollout_of
from pytest_agentbench.suites.hashes import ContentHashes, differences, digest
from pytest_agentbench.suites.suite import PoolSuite

SESSIONS_FILE = "sessions.jsonl"


@dataclass(frozen=True)
class Session:
    """One session of a run."""

    number: int  # number of the session, counted from 1
    started_at: str  # start, ISO 8601
    command: tuple[str, ...]  # command line
    concurrency: int = 1  # rollouts in flight at most
    backend: Json = field(default_factory=dict)  # parts of the backend YAML that influence its answers
    suites: Json = field(default_factory=dict)  # suite -> its agents, prompts and scorers


def append_session(directory: Path, session: Session, redact: Callable[[str], str]) -> None:
    """Appends a session to sessions.jsonl."""
    with (directory / SESSIONS_FILE).open("ab+") as file:
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")  # after an incomplete line of a killed session
        file.write(redact(json.dumps(codec.plain(session))).encode(errors="backslashreplace") + b"\n")


def read_sessions(directory: Path) -> list[Session]:
    """Returns the sessions of a run. Ignores lines that are incomplete."""
    path = directory / SESSIONS_FILE
    sessions = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            sessions.append(codec.read(Session, bounded_json(line)))
        except ValueError:
            continue
    return sessions


def folder_of(directory: Path, session: int) -> Path:
    """Returns the folder with logs and samples of a session: the run directory for the first one, a folder in it for later ones."""
    return directory if session == 1 else directory / f"session-{session}"


def prompt_hashes(suite: PoolSuite, variant: str) -> Json | None:
    """Returns option -> hash for each prompt of the agent. None if the agent is code of the suite."""
    settings = suite.agent_of(variant)
    if brings_code(settings, suite.folder):  # only the pool imports it; its settings contain the hash of its file
        return None
    return {name: digest(text) for name, text in prompts_of(make_agent(settings, suite.folder)).items()}


SHOWN = 5  # number of changed scenarios that a refusal names


UNKNOWN = Session(0, "", ())  # placeholder for a session that sessions.jsonl does not contain


class HashChange(NamedTuple):
    """A hash of a kept rollout that differs from the hash that it would have in this session."""

    key: RolloutKey
    session: int  # number of the session that ran it
    old: str  # hash in the record
    new: str  # hash in this session; empty if there is none


def find_resumable(name: str, reports: Path) -> Path:
    """Returns the directory of a run that can be resumed: a path, a name in the reports directory, or `latest`.

    If several runs have the name, the newest is returned. The latest run is the one whose journal was written last, because a killed
    session may not have updated the link `latest`. Raises ConfigError if there is no such run.
    """
    runs = [path.parent for path in reports.glob(f"*/{SESSIONS_FILE}") if (path.parent / FILE).is_file() and not path.parent.is_symlink()]
    if name == LATEST:
        if not runs:
            raise ConfigError(f"there is no run in {reports} to resume; leave out --agentbench-resume to start one")
        return max(runs, key=lambda run: ((run / FILE).stat().st_mtime_ns, run.name))
    for directory in (reports / name, Path(name), *reversed(runs_called(name, reports))):
        if (directory / SESSIONS_FILE).is_file() and (directory / FILE).is_file():
            return directory.resolve()
    needed = f"a run that can be resumed contains {FILE} and {SESSIONS_FILE}"
    raise ConfigError(f"{unknown_name('run', name, sorted(run.name for run in runs))} (in {reports}); {needed}")


def resume_journal(
    journal: Journal,
    session: int,
    contents: ContentHashes,
    suites: Mapping[str, Json],
    backend: Json,
    sessions: Sequence[Session],
    rerun: Collection[str],
) -> EarlierWork:
    """Returns the rollouts that a session keeps of a run. The journal forgets those that run again.

    Args:
        journal: The open journal of the run.
        session: Number of the session.
        contents: Computes the hashes (of agent, prompts, scorers and so on) that rollouts have in this session.
        suites: Suite -> its identity in this session.
        backend: Identity of the backend in this session.
        sessions: Earlier sessions of the run.
        rerun: Statuses of rollouts that run again.

    Raises:
        ConfigError: Something has changed since a kept rollout was recorded. The message lists all changes.
    """
    work = earlier_work(journal.index, session, rerun)
    kept = {key: journal.index.entries[key] for key in work.kept}
    if reasons := [*refusals(kept, contents, suites, backend, sessions)]:
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        way_out = "undo these changes, or leave out --agentbench-resume to start a new run"
        raise ConfigError(f"the run {journal.path.parent.name} cannot be resumed:{listed}\n{way_out}")
    for key in work.again:
        journal.forget(key)
    return work


def with_earlier(line: bytes, before: bytes) -> bytes:
    """Returns the record of a rollout that ran again, with the attempts of its earlier record `before` in front of its own."""
    rollout = rollout_of(line)
    every = (*_attempts(before), *rollout.earlier_attempts)
    earlier = tuple(replace(attempt, attempt=number) for number, attempt in enumerate(every, 1))
    return record_line(replace(rollout, attempt=len(earlier) + 1, earlier_attempts=earlier))


def _attempts(line: bytes) -> tuple[Attempt, ...]:
    """Returns the attempts of a record, or none if it is damaged."""
    try:
        return rollout_of(line).attempts
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def refusals(
    kept: Mapping[RolloutKey, Entry], contents: ContentHashes, suites: Mapping[str, Json], backend: Json, sessions: Sequence[Session]
) -> Iterator[str]:
    """Yields a sentence for each change that makes resuming impossible: suites, backend, agents, prompts, scorers, scenarios."""
    for name, count in Counter(key.suite for key in kept if key.suite not in suites).items():
        yield f"{count} of its rollouts belong to the suite {name}, which the command line does not select or which cannot be loaded"
    changes = _changes({key: entry for key, entry in kept.items() if key.suite in suites}, contents)
    written = {session.number: session for session in sessions}
    for (part, *_), change in sorted(changes.items()):
        then, suite = written.get(change.session, UNKNOWN), change.key.suite
        match part:
            case "backend":
                yield f"the backend has changed: {_change_text(change, then.backend, backend)}"
            case "agent":
                was = then.suites.get(suite, {}).get("agents", {}).get(change.key.variant)
                now = suites[suite]["agents"].get(change.key.variant)
                yield f"the agent of {change.key.group} has changed: {_change_text(change, was, now)}"
            case "prompts":
                was = then.suites.get(suite, {}).get("prompts", {}).get(change.key.variant)
                now = suites[suite]["prompts"].get(change.key.variant)
                yield f"the prompts of {change.key.group} have changed: {_change_text(change, was, now)}"
            case "scorers":
                was = then.suites.get(suite, {}).get("scorers")
                yield f"the scorers of {suite} have changed: {_change_text(change, was, suites[suite]['scorers'])}"
    scenarios = [change for (part, *_), change in sorted(changes.items()) if part == "scenario"]
    for change in scenarios[:SHOWN]:
        how = f"has changed ({_hashes(change)})" if change.new else "is no longer in its data set"
        yield f"the scenario {change.key.scenario} of {change.key.suite} {how}"
    if len(scenarios) > SHOWN:
        yield f"{len(scenarios) - SHOWN} more scenarios have changed"


def _changes(kept: Mapping[RolloutKey, Entry], contents: ContentHashes) -> dict[tuple[str, ...], HashChange]:
    """Returns each change since kept rollouts were recorded, with the first rollout that it concerns.

    A key is the changed part, such as `agent`, and its suite, group or scenario.
    """
    every: dict[tuple[str, ...], HashChange] = {}
    for key, entry in kept.items():
        if entry.content != (today := contents.of(key)):
            whose = {
                "backend": (),
                "agent": (key.group,),
                "prompts": (key.group,),
                "scorers": (key.suite,),
                "scenario": (key.suite, key.scenario),
            }
            for part, hash in today.items():
                if (was := entry.content.get(part)) != hash:
                    every.setdefault((part, *whose[part]), HashChange(key, entry.session, _text(was, hash), _text(hash, was)))
    return every


def _text(value: Any, other: Any) -> str:
    """Returns a hash as text. If the value has several named hashes, returns those that differ from the other value."""
    if not isinstance(value, Mapping):
        return str(value or "")
    others = other if isinstance(other, Mapping) else {}
    return ", ".join(f"{name} {hash}" for name, hash in value.items() if others.get(name) != hash)


def _change_text(change: HashChange, was: Json | None, now: Json | None) -> str:
    """Returns a text with the differences between two identities and with their hashes."""
    changes = differences(was, now) if was else []
    return "; ".join([*changes, _hashes(change)])


def _hashes(change: HashChange) -> str:
    return f"hash {change.old or 'unknown'} is now {change.new or 'none'}"
