"""`agentbench share`: packs a run into one archive: its reports, its records, its suites, and the hash of each file."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import ConfigError

if TYPE_CHECKING:
    from pytest_agentbench.lib.redact import Redactor
    from pytest_agentbench.runs.run_file import Run
    from pytest_agentbench.suites.suite import Suite

SUMS = "SHA256SUMS"
SUITES = "suites"
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*")  # files that are left out of a suite's folder


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    share = commands.add_parser(
        "share",
        help="Pack a run into one archive that another person can read and score again",
        example="agentbench share latest --output run.tar.gz",
    )
    share.takes_run()
    share.add_argument("--output", type=Path, metavar="FILE", help="the archive (default: NAME-OF-THE-RUN.tar.gz in this directory)")
    share.add_argument("--without-suites", action="store_true", help="leave out the suites; then the run cannot be scored again")
    share.add_argument("--without-messages", action="store_true", help="leave out messages.jsonl, the requests and replies of LLM calls")
    share.takes_reports()
    share.set_defaults(run=run_share)


def run_share(options: argparse.Namespace) -> None:
    """Writes the archive, completely or not at all. Prints its size and contents."""
    from pytest_agentbench.lib.redact import Redactor
    from pytest_agentbench.runs.journal import check_journal
    from pytest_agentbench.runs.run_file import find_run, read_run
    from pytest_agentbench.suites.suite import public_of

    source = find_run(options.name, options.reports).resolve()
    check_journal(source)
    run = read_run(source)
    suites = {} if options.without_suites else loaded_suites(run)
    redactor = Redactor(public=public_of(suites.values()))
    target = options.output or Path(f"{source.name}.tar.gz")
    if target.exists():
        raise ConfigError(f"{target} exists already; remove it, or name another file with --output FILE")
    with tempfile.TemporaryDirectory() as draft:
        folder = Path(draft, source.name)
        folder.mkdir()
        copy_record(run, source, folder, redactor, with_messages=not options.without_messages)
        copy_suites(suites, folder / SUITES, redactor)
        (folder / "README.md").write_text(_readme(run, folder, suites), encoding="utf-8")
        (folder / SUMS).write_text("".join(_sums(folder)), encoding="utf-8")
        try:
            with tarfile.open(target, "x:gz") as archive:
                archive.add(folder, folder.name, filter=_without_owner)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise ConfigError(f"{target} cannot be written: {error.strerror or error}; name another file with --output FILE") from error
        messages = _messages_text(folder)
    print(f"wrote {target} ({target.stat().st_size / 1e6:.1f} MB): the run {source.name} with {_suites_text(suites)}{messages}")


def loaded_suites(run: Run) -> dict[str, Suite]:
    """Loads the suites of a run, by name. Raises ConfigError if one was removed or its data has changed since the run."""
    from pytest_agentbench.records import suite_of
    from pytest_agentbench.rollouts.rescore import load_groups

    try:
        groups = load_groups(run, {}, ())
    except ConfigError as error:
        raise ConfigError(f"{error}. To share the run without its suites, use --without-suites") from error
    return {suite_of(group, run.suites[group].variant): each.suite for group, each in groups.items()}


def copy_record(run: Run, source: Path, folder: Path, redactor: Redactor, *, with_messages: bool) -> None:
    """Copies the journal, messages, samples, session files and logs of a run to a folder, redacted again, and writes new reports."""
    from pytest_agentbench.backends.telemetry import samples
    from pytest_agentbench.lib.json_text import sealed
    from pytest_agentbench.lib.redact import scrub
    from pytest_agentbench.reports import write_reports
    from pytest_agentbench.runs import journal, message_file, sessions
    from pytest_agentbench.runs.run_file import redacted, write_run

    changed = message_file.copy_messages(source, folder, redactor) if with_messages else {}
    with (folder / journal.FILE).open("xb") as lines:
        for rollout in journal.read_journal(source):
            kept = rollout if with_messages else replace(rollout, conversation="")  # The transcript is then in the record.
            line = redactor(journal.record_line(kept).decode()).encode()
            lines.write(sealed(message_file.with_changed_ids(line, changed)) + b"\n")
    for file in sorted([*source.rglob(samples.FILE), *source.rglob(sessions.SESSIONS_FILE), *source.rglob("*.log")]):
        copy = folder / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".log":
            shutil.copyfile(file, copy)
        else:
            with file.open(encoding="utf-8", newline="\n") as lines, copy.open("w", encoding="utf-8", newline="\n") as clean_lines:
                clean_lines.writelines(map(redactor, lines))
    if failed := scrub(folder, redactor).failed:
        raise ConfigError("; ".join(f"{log.name}: {error.strerror}" for log, error in failed.items()))
    clean = redacted(run, redactor)
    write_run(clean, folder)
    write_reports(clean, folder)


def copy_suites(suites: dict[str, Suite], folder: Path, redactor: Redactor) -> None:
    """Copies the folders of suites unchanged, so that rescoring gives the same scores. Raises ConfigError for a file with a secret."""
    for name, suite in suites.items():
        shutil.copytree(suite.folder, folder / name, ignore=LEFT_OUT)
        for file in sorted((folder / name).rglob("*")):
            if not file.is_file() or file == folder / name / suite.dataset.file:  # texts of the data are public
                continue
            text = file.read_bytes().decode(errors="replace")
            if redactor.plain(text) != text:
                origin = suite.folder / file.relative_to(folder / name)
                raise ConfigError(f"{origin} contains a secret; take it out, or share the run with --without-suites")


def _readme(run: Run, folder: Path, suites: dict[str, Suite]) -> str:
    environment = run.environment
    packages = " ".join(f"{name}=={version}" for name, version in environment.packages.items())
    rescore = " ".join(["agentbench rescore .", *(f"--suite {SUITES}/{name}" for name in suites)])
    again = f"`{rescore}` scores its rollouts again." if suites else "The suites were left out, so it cannot be scored again."
    return (
        f"# The run {folder.name}\n\n"
        "Open report.html in a browser, or read report.md. run.json has every number, rollouts.jsonl every rollout with its calls.\n\n"
        f"The run was made with Python {environment.python} and these packages: {packages}.\n\n"
        f"`sha256sum -c {SUMS}` checks that no file was changed. With pytest-agentbench installed, in this directory:\n"
        f"`agentbench show .` prints the run. {again}\n"
    )


def _messages_text(folder: Path) -> str:
    from pytest_agentbench.lib.kept_values import FILE

    return f" and all requests and replies ({FILE}; --without-messages leaves them out)" if (folder / FILE).exists() else ""


def _suites_text(suites: dict[str, Suite]) -> str:
    return f"the suite{'s' * (len(suites) > 1)} {', '.join(suites)}" if suites else "no suite"


def _sums(folder: Path) -> Iterator[str]:
    """Yields the line of each file in SHA256SUMS: hash and name, in the format of sha256sum."""
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(folder)}\n"


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Removes the owner from an entry of the archive."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
