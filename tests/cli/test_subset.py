"""Subsets of data files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_agentbench.cli.subset import subset
from pytest_agentbench.errors import ConfigError

ENTRIES = [{"id": f"s{i}", "question": "Straße?", "anything": {"nested": [i, 1.5, None]}} for i in range(20)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "all.json"
    file.write_text(json.dumps(ENTRIES))
    return file


def test_the_first_entries(source: Path, tmp_path: Path) -> None:
    """Without a seed the first N entries are written unchanged. A file with fewer entries is written completely."""
    output = tmp_path / "few.json"

    assert 3 == subset(source, output, 3)
    assert ENTRIES[:3] == json.loads(output.read_text())
    assert 20 == subset(source, output, 100)
    assert ENTRIES == json.loads(output.read_text())


def test_a_missing_directory(source: Path, tmp_path: Path) -> None:
    """If the output's directory does not exist, the error names it, and nothing is written."""
    output = tmp_path / "typo" / "few.json"

    with pytest.raises(ConfigError, match=re.escape(f"{output}: the directory {output.parent} does not exist; create it, or ")):
        subset(source, output, 3)
    assert [source] == [*tmp_path.iterdir()]


def test_the_source_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    """A subset cannot be written over its input file, even through a link."""
    (tmp_path / "link.json").symlink_to(source)
    before = source.read_text()

    for output in (source, tmp_path / "link.json"):
        with pytest.raises(ConfigError, match=re.escape(f"{output}: is the input file; name another output file")):
            subset(source, output, 3)
    assert before == source.read_text()


def test_a_seeded_sample(source: Path, tmp_path: Path) -> None:
    """With a seed the sample is reproducible, differs between seeds and keeps the file's order."""
    samples = []
    for seed in (1, 1, 2):
        assert 5 == subset(source, tmp_path / "few.json", 5, seed)
        samples.append([ENTRIES.index(entry) for entry in json.loads((tmp_path / "few.json").read_text())])

    assert samples[0] == samples[1]
    assert samples[0] != samples[2]
    assert [sorted(sample) for sample in samples] == samples
    assert [0, 1, 2, 3, 4] not in samples


def test_json_lines(source: Path, tmp_path: Path) -> None:
    """The format follows from the file name: a list becomes lines, and lines become a list."""
    subset(source, tmp_path / "few.jsonl", 2)
    subset(tmp_path / "few.jsonl", tmp_path / "few.json", 2)

    assert ENTRIES[:2] == [json.loads(line) for line in (tmp_path / "few.jsonl").read_text().splitlines()]
    assert ENTRIES[:2] == json.loads((tmp_path / "few.json").read_text())
    assert "Straße" in (tmp_path / "few.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "limit", "message"),
    [
        ("[]", 1, "contains no scenarios; name another file"),
        ("", 1, "is empty"),
        ("{}", 1, "contains a JSON dict, but must contain a list"),
        ("[\n{]", 1, "2: not valid JSON"),
        ("[{}]", 0, "the number of scenarios must be at least 1, not 0"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, content: str, limit: int, message: str) -> None:
    """An error is one sentence with the file and the problem, and nothing is written."""
    (tmp_path / "bad.json").write_text(content)

    with pytest.raises(ConfigError) as caught:
        subset(tmp_path / "bad.json", tmp_path / "few.json", limit)

    assert str(caught.value).startswith(f"{tmp_path / 'bad.json'}:")
    assert message in str(caught.value)
    assert not (tmp_path / "few.json").exists()


def test_a_missing_file_and_an_unwritable_one(source: Path, tmp_path: Path) -> None:
    """An error of the operating system is reported with the file."""
    with pytest.raises(ConfigError, match=r"nothing\.json: No such file"):
        subset(tmp_path / "nothing.json", tmp_path / "few.json", 1)
    with pytest.raises(ConfigError, match=f"{tmp_path}: cannot be written: Is a directory"):
        subset(source, tmp_path, 1)
