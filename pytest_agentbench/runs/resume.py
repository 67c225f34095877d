"""Going on with a run: which of its rollouts are kept, which run again, and what makes that impossible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.records import Attempt, Json, RolloutKey
from pytest_agentbench.runs.directory import LATEST, runs_called
from pytest_agentbench.runs.journal import FILE, EarlierWork, Entry, Journal, earlier_work, record_line, rollout_of
from pytest_agentbench.runs.sessions import FILE as SESSIONS
from pytest_agentbench.runs.sessions import Session
from pytest_agentbench.suites.hashes import ContentHashes, differences

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
    runs = [path.parent for path in reports.glob(f"*/{SESSIONS}") if (path.parent / FILE).is_file() and not path.parent.is_symlink()]
    if name == LATEST:
        if not runs:
            raise ConfigError(f"there is no run in {reports} to go on with; leave out --agentbench-resume to start one")
        return max(runs, key=lambda run: ((run / FILE).stat().st_mtime_ns, run.name))
    for directory in (reports / name, Path(name), *reversed(runs_called(name, reports))):
        if (directory / SESSIONS).is_file() and (directory / FILE).is_file():
            return directory.resolve()
    wanted = f"a run that sessions have worked on holds {FILE} and {SESSIONS}"
    raise ConfigError(f"{unknown_name('run', name, sorted(run.name for run in runs))} (in {reports}); {wanted}")


def take_up(
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
                yield f"the backend has changed: {_how(change, then.backend, backend)}"
            case "agent":
                was = then.suites.get(suite, {}).get("agents", {}).get(change.key.variant)
                yield f"the agent of {change.key.group} has changed: {_how(change, was, suites[suite]['agents'].get(change.key.variant))}"
            case "prompts":
                was = then.suites.get(suite, {}).get("prompts", {}).get(change.key.variant)
                now = suites[suite]["prompts"].get(change.key.variant)
                yield f"the prompts of {change.key.group} have changed: {_how(change, was, now)}"
            case "scorers":
                was = then.suites.get(suite, {}).get("scorers")
                yield f"the scorers of {suite} have changed: {_how(change, was, suites[suite]['scorers'])}"
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


def _how(change: HashChange, was: Json | None, now: Json | None) -> str:
    """What differs between two identities, and their hashes."""
    found = differences(was, now) if was else []
    return "; ".join([*found, _hashes(change)])


def _hashes(change: HashChange) -> str:
    return f"hash {change.old or 'unknown'} is now {change.new or 'none'}"
