"""Runs of one setup beside each other in a folder of reports: how often it was run until it passed, and which of them was the luckiest."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from datetime import datetime
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.exit_status import EXITS, FAILED
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.run_file import FILE, read_run
from pytest_agentbench.runs.verdicts import EarlierRuns
from pytest_agentbench.stats.decisions import INCONCLUSIVE, PASS

#: Parts of an identity that make two runs two tries of one thing; hosts, concurrency and budgets do not.
PARTS = ("code", "packages", "backend", "model", "data", "prompts", "tools", "agent", "scoring")

#: Verdicts on quality. A run that could not measure, or was broken off, was no try: to run it again is what it takes.
TRIES = (PASS, EXITS[FAILED].verdict, INCONCLUSIVE)

MOST = 200  # runs that are read, the newest


def setup_of(run: Run) -> Hashable:
    """What a run was one of; None where that is not known, as without git."""
    identity = run.identity
    if identity is None or identity.code is None:
        return None
    hashes = tuple(identity.hashes[part] for part in PARTS)
    return hashes, frozenset(identity.options.suites.items()), run.settings.limit


def beside(run: Run, reports: Path) -> list[Run]:
    """The other runs of the same setup that came to a verdict, the oldest first."""
    setup = setup_of(run)
    if setup is None or run.identity is None:
        return []
    hashes = {run.identity.hashes[part].encode() for part in PARTS}
    others = [each for each in _runs(reports, hashes) if each.id != run.id and each.verdict in TRIES and setup_of(each) == setup]
    return sorted(others, key=_began)


def earlier_tries(run: Run, reports: Path) -> EarlierRuns:
    """Runs of the same setup, compared with the same baselines, before this one."""
    compared = _baselines(run)
    earlier = [each for each in beside(run, reports) if _began(each) < _began(run) and _baselines(each) == compared]
    return EarlierRuns(len(earlier), tuple(each.id for each in earlier if each.verdict != PASS))


def _baselines(run: Run) -> dict[str, str]:
    return {group: base.run for group, base in run.gate.baselines.items()} if run.gate else {}


def _began(run: Run) -> datetime:
    return datetime.fromisoformat(run.started_at)


def _runs(reports: Path, hashes: Collection[bytes]) -> Iterator[Run]:
    """The newest runs in whose files these hashes stand; a folder that holds none, or one of another version, is none."""
    folders = sorted((path.parent for path in reports.glob(f"*/{FILE}") if not path.parent.is_symlink()), key=lambda path: path.name)
    for folder in folders[-MOST:]:
        try:
            text = (folder / FILE).read_bytes()
            if not all(hash in text for hash in hashes):  # most are of another setup, and to read a Run takes milliseconds
                continue
            run = read_run(folder)
        except (ConfigError, OSError):
            continue
        if run.rescored is None:
            yield run
