"""The run in reports/example: it is up to date, contains no facts about a machine, and is not used as an earlier run."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.repeats import runs_of_same_setup
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.plots import FOLDER, drawn
from pytest_agentbench.plots.canvas import AXES
from pytest_agentbench.plots.rollout_pictures import SCATTER_AXES
from pytest_agentbench.runs.directory import keep_out_of_git
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.run_file import FILE, Run, read_run, write_run
from pytest_agentbench.runs.sessions import find_resumable
from pytest_agentbench.tap.dialects import DIALECTS
from tests.example import EXAMPLE, PICTURES, REPORTS, run_command, write_pages
from tests.made_runs import run_directory
from tests.project import PLACE
from tests.report_page import data_of
from tests.tables.shop import ALL

MOST_KB = 900

PAGES = ("report.md", "comment.md", "report.html")


@pytest.fixture
def run() -> Run:
    try:
        return read_run(EXAMPLE)
    except ConfigError as error:
        pytest.fail(f"{error}; the example is stale: make example")


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields the files below a folder with their texts."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            yield file, readable(text) if file.suffix == ".html" else text


def readable(page: str) -> str:
    """Returns a page with decompressed rollouts, and without its script, whose comments and patterns look like paths."""
    blocks = [gzip.decompress(base64.b64decode(block)).decode() for run in data_of(page)[0] for block in run.blocks]
    return "\n".join([re.sub(r"<script( type=.text/plain.[^>]*)?>.*?</script>", "", page, flags=re.DOTALL), *blocks])


def test_the_example_has_current_keys(run: Run) -> None:
    """run.json has the keys, order and schema that this version writes."""
    assert json.dumps(plain(run), indent=2, ensure_ascii=False) + "\n" == (EXAMPLE / FILE).read_text(encoding="utf-8"), "make example"


@pytest.mark.parametrize("page", PAGES)
def test_the_example_has_current_pages(run: Run, tmp_path: Path, page: str) -> None:
    """The pages are those that this version writes for the same numbers."""
    again = shutil.copytree(EXAMPLE, tmp_path / run.id)
    write_pages(again)

    assert (again / page).read_text(encoding="utf-8") == (EXAMPLE / page).read_text(encoding="utf-8"), "python -m tests.example pages"


def test_the_example_has_current_pictures() -> None:
    """The pictures have the names and axes of this version, and the report shows them."""
    report = (EXAMPLE / "report.md").read_text(encoding="utf-8")

    assert sorted(PICTURES) == sorted(file.name for _, file in drawn(EXAMPLE)) == sorted(each.name for each in (EXAMPLE / FOLDER).iterdir())
    for picture in PICTURES:
        file = EXAMPLE / FOLDER / picture
        text = file.read_text(encoding="utf-8")
        shown = SCATTER_AXES if "_vs_" in picture else AXES
        assert [] == [words for words in shown.values() if words not in text], "make example"
        assert f"({FOLDER}/{picture})" in report


def test_the_files_are_explained() -> None:
    """README.md of the folder links each file."""
    links = re.findall(r"\]\(([^)#]+)", (REPORTS / "README.md").read_text(encoding="utf-8"))

    assert {*PAGES, FILE, FOLDER} == {file.name for file in EXAMPLE.iterdir()}
    assert {f"example/banking/{file.name}" for file in EXAMPLE.iterdir()} <= {*links}


def test_the_example_has_no_facts_about_a_machine() -> None:
    """The run is small, and contains no paths of the machine that made it."""
    paths = {path for _, text in texts(EXAMPLE) for path in re.findall(r"(?<![\w.:/<-])/[a-z][\w-]*/[\w./-]+", text)}

    assert [] == [path for path in sorted(paths - {*DIALECTS}) if not path.startswith(PLACE)]
    assert sum(file.stat().st_size for file, _ in texts(EXAMPLE)) < MOST_KB * 1000


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Returns the folder of reports as in a fresh clone."""
    folder = tmp_path / "reports"
    for name in ("example", "baselines"):
        shutil.copytree(REPORTS / name, folder / name)
    for name in (".gitignore", "README.md"):
        shutil.copy(REPORTS / name, folder)
    return folder


def test_the_example_is_not_an_earlier_run(run: Run, reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example is not an earlier run of a setup, cannot be resumed, is not `latest`, and is not in a picture of all runs."""
    assert run.identity is not None
    under_git = replace(run, id="another", identity=replace(run.identity, code=Git("c", dirty=False, diff=None)))
    write_run(under_git, reports / "example" / "banking")

    assert [] == runs_of_same_setup(replace(under_git, id="mine"), reports)
    with pytest.raises(ConfigError, match="there is no run in"):
        find_resumable("latest", reports)
    assert 4 == main(["show", "--reports", str(reports)])
    assert "no run 'latest'; known: none (in" in capsys.readouterr().err
    run_directory(reports / "mine", *ALL)
    assert 0 == main(["plot", str(reports), "--format=svg", "--output", str(tmp_path / "plots")])
    assert "mine" in (tmp_path / "plots" / "quality_vs_speed.svg").read_text()
    assert "another" not in (tmp_path / "plots" / "quality_vs_speed.svg").read_text()


def test_the_example_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench show` prints the example if its folder is given, as in its README."""
    assert 0 == main(["show", "banking", "--reports", str(REPORTS / "example")])
    assert re.search(r"^verdict     PASS: banking tsq.mean 0\.\d{3} \[", capsys.readouterr().out, re.MULTILINE)


def test_git_tracks_the_example_and_no_runs(reports: Path) -> None:
    """Git tracks the example, baselines and READMEs, but no runs. A session does not change that."""
    run_directory(reports / "20260304-050607", *ALL)
    (reports / "latest").symlink_to("20260304-050607")
    (reports / "durations.json").write_text("{}")
    (reports / "baselines" / "shop.jsonl").touch()
    keep_out_of_git(reports)
    subprocess.run(["git", "init", "--quiet"], cwd=reports, check=True)
    shown = subprocess.run(["git", "ls-files", "--others", "--exclude-standard"], cwd=reports, capture_output=True, text=True, check=True)

    example = {f"example/banking/{file.relative_to(EXAMPLE)}" for file, _ in texts(EXAMPLE)}
    assert {".gitignore", "README.md", "baselines/README.md", "baselines/shop.jsonl", *example} == {*shown.stdout.split()}


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("page", 2)])
def test_words_of_the_command(word: str, status: int) -> None:
    """--help does not run the example, and neither does a misspelt word."""
    before = (EXAMPLE / "run.json").stat().st_mtime_ns

    with pytest.raises(SystemExit) as ending:
        run_command([word])

    assert (status, before) == (ending.value.code, (EXAMPLE / "run.json").stat().st_mtime_ns)
