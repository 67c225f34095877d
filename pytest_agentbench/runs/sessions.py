"""Sessions of a run: sessions.jsonl has a line for each, written when it starts. For one that goes on with a run: which rollouts are
kept, which run again, and what makes that impossible.
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
from pytest_agentbench.lib.json_file import bounded_json
from pytest_agentbench.records import Attempt, Json, RolloutKey
from pytest_agentbench.runs.directory import LATEST, runs_called
from pytest_agentbench.runs.journal import FILE, EarlierWork, Entry, Journal, earlier_work, record_line, rollout_of
from pytest_agentbench.suites.hashes import ContentHashes, differences, digest
from pytest_agentbench.suites.suite import PoolSuite

SESSIONS_FILE = "sessions.jsonl"


@dataclass(frozen=True)
class Session:
    """One session of a run."""

    number: int  # counted from 1
    started_at: str  # ISO 8601
    command: tuple[str, ...]
    concurrency: int = 1  # rollouts in flight at most
    backend: Json = field(default_factory=dict)  # what decides how it answers
    suites: Json = field(default_factory=dict)  # suite -> agents and scorers


def append_session(directory: Path, session: Session, redact: Callable[[str], str]) -> None:
    """Writes a session down."""
    with (directory / SESSIONS_FILE).open("ab+") as file:
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")  # a line that was torn by a kill
        file.write(redact(json.dumps(codec.plain(session))).encode(errors="backslashreplace") + b"\n")


def read_sessions(directory: Path) -> list[Session]:
    """The sessions of a run; what was torn by a kill is left out."""
    path = directory / SESSIONS_FILE
    sessions = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            sessions.append(codec.read(Session, bounded_json(line)))
        except ValueError:
            continue
    return sessions


def folder_of(directory: Path, session: int) -> Path:
    """Where logs and samples of a session are: the run directory itself, or a folder of its own in it for those that went on."""
    return directory if session == 1 else directory / f"session-{session}"


def prompt_hashes(suite: PoolSuite, variant: str) -> Json | None:
    """Option -> hash of each text that the agent tells a model besides the scenario; None of an agent that is the suite's own code."""
    settings = suite.agent_of(variant)
    if brings_code(settings, suite.folder):  # it is imported in the pool only; the hash of its file is among the settings
        return None
    return {name: digest(text) for name, text in prompts_of(make_agent(settings, suite.folder)).items()}


SHOWN = 5  # changed scenarios that a refusal names


UNKNOWN = Session(0, "", ())  # one that nothing is written down of


class HashChange(NamedTuple):
    """A hash that a kept rollout has, and another one that it would have today."""

    key: RolloutKey
    session: int  # that ran it
    old: str
    new: str


def find_resumable(name: str, reports: Path) -> Path:
    """The directory of a run that can be gone on with: a path, a name under the reports, or `latest`; raises ConfigError.

    Of several that the user has given one name the newest is meant. The latest run is the one whose journal was written to last:
    a session that was killed had no time to say that it was the newest.
    """
    runs = [path.parent for path in reports.glob(f"*/{SESSIONS_FILE}") if (path.parent / FILE).is_file() and not path.parent.is_symlink()]
    if name == LATEST:
        if not runs:
            raise ConfigError(f"there is no run in {reports} to go on with; leave out --agentbench-resume to start one")
        return max(runs, key=lambda run: ((run / FILE).stat().st_mtime_ns, run.name))
    for directory in (reports / name, Path(name), *reversed(runs_called(name, reports))):
        if (directory / SESSIONS_FILE).is_file() and (directory / FILE).is_file():
            return directory.resolve()
    needed = f"a run that sessions have worked on holds {FILE} and {SESSIONS_FILE}"
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
    """Returns what session number `session` keeps of a run. What runs again is forgotten by the journal.

    `suites` and `backend` are the identities of today. Raises ConfigError with everything that has changed since a rollout that is kept.
    """
    work = earlier_work(journal.index, session, rerun)
    kept = {key: journal.index.entries[key] for key in work.kept}
    if reasons := [*refusals(kept, contents, suites, backend, sessions)]:
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        way_out = "undo that, or leave out --agentbench-resume to start a run of its own"
        raise ConfigError(f"the run {journal.path.parent.name} cannot be gone on with:{listed}\n{way_out}")
    for key in work.again:
        journal.forget(key)
    return work


def with_earlier(line: bytes, before: bytes) -> bytes:
    """The record of a rollout that ran again as one of all its attempts; `before` is what an earlier session wrote of it."""
    rollout = rollout_of(line)
    every = (*_attempts(before), *rollout.earlier_attempts)
    earlier = tuple(replace(attempt, attempt=number) for number, attempt in enumerate(every, 1))
    return record_line(replace(rollout, attempt=len(earlier) + 1, earlier_attempts=earlier))


def _attempts(line: bytes) -> tuple[Attempt, ...]:
    """None of a record that is damaged."""
    try:
        return rollout_of(line).attempts
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def refusals(
    kept: Mapping[RolloutKey, Entry], contents: ContentHashes, suites: Mapping[str, Json], backend: Json, sessions: Sequence[Session]
) -> Iterator[str]:
    """A sentence for each thing that is not as it was: suites, the backend, agents, their prompts, scorers, scenarios."""
    for name, count in Counter(key.suite for key in kept if key.suite not in suites).items():
        yield f"{count} of its rollouts are of the suite {name}, which the command line does not lead to, or which cannot be loaded"
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
        how = f"has changed ({_hashes(change)})" if change.new else "is not in its data set any more"
        yield f"the scenario {change.key.scenario} of {change.key.suite} {how}"
    if len(scenarios) > SHOWN:
        yield f"{len(scenarios) - SHOWN} more scenarios have changed"


def _changes(kept: Mapping[RolloutKey, Entry], contents: ContentHashes) -> dict[tuple[str, ...], HashChange]:
    """(part, and whose) -> what has changed, each once."""
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
    """A hash; of several with names, those that are not the other's."""
    if not isinstance(value, Mapping):
        return str(value or "")
    others = other if isinstance(other, Mapping) else {}
    return ", ".join(f"{name} {hash}" for name, hash in value.items() if others.get(name) != hash)


def _change_text(change: HashChange, was: Json | None, now: Json | None) -> str:
    """What differs between two identities, and their hashes."""
    changes = differences(was, now) if was else []
    return "; ".join([*changes, _hashes(change)])


def _hashes(change: HashChange) -> str:
    return f"hash {change.old or 'unknown'} is now {change.new or 'none'}"
