"""The format of Humanity's Last Exam: how a row becomes a scenario, which rows are left out, and which columns are never read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError, MissingData
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.hle import GATED, URL, VARIABLE, download, load
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Suite, content_text
from tests.sent import sent

PICTURE = "data:image/png;base64,iVBORw0KGgo="
CANARY = "canary 00000000-0000-0000-0000-000000000000"
SAMPLE = Path(__file__).parents[3] / "scenarios" / "hle"


def row(id: str, image: str = "", **columns: object) -> Json:
    return {
        "id": id,
        "question": f"What is {id}?",
        "image": image,
        "image_preview": None,
        "answer": "42",
        "answer_type": "exactMatch",
        "author_name": "somebody",
        "rationale": "It is known.",
        "rationale_image": None,
        "raw_subject": "Lore",
        "category": "Other",
        "canary": CANARY,
        **columns,
    }


def jsonl(folder: Path, *rows: object) -> Path:
    file = folder / "hle.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    return file


def suite(folder: Path, options: str = "{}", file: str = "hle.jsonl") -> Suite:
    path = folder / "suite.yaml"
    path.write_text(f"name: exam\ndataset: {{format: hle, file: {file}, options: {options}}}\nscorers: [judged_answer]\n")
    return load_suite(path)


def test_a_row(tmp_path: Path) -> None:
    """The question becomes the message.

    Answer, kind and subjects become metadata, and the rationale, the author and the canary are left out.
    """
    (scenario,) = load(jsonl(tmp_path, row("a"))).scenarios

    assert ({"role": "user", "content": "What is a?"},) == scenario.messages
    facts = {"answer": "42", "answer_type": "exactMatch", "category": "Other", "raw_subject": "Lore", "label_source": "hle"}
    assert facts == scenario.metadata
    assert not [word for word in (CANARY, "It is known", "somebody") if word in repr(scenario)]


def test_questions_with_a_picture(tmp_path: Path) -> None:
    """By default (`skip`), questions with a picture are left out and counted. With `keep`, the picture is a part of the message."""
    jsonl(tmp_path, row("a"), row("b", PICTURE))

    assert (["a"], {"image questions": 1}) == ([each.id for each in suite(tmp_path).scenarios], suite(tmp_path).dataset.left_out)
    kept = suite(tmp_path, "{images: keep}")
    assert (["a", "b"], {}) == ([each.id for each in kept.scenarios], kept.dataset.left_out)
    text, picture = kept.scenarios[1].messages[0]["content"]
    assert {"type": "image_url", "image_url": {"url": PICTURE}} == picture
    assert "What is b?" == text["text"] == content_text(kept.scenarios[1].messages[0])
    assert kept.scenarios == sent(kept.for_pool()).scenarios


def test_parquet(tmp_path: Path) -> None:
    """The parquet file of the hub gives the same scenarios as JSON lines, whatever other columns it has.

    An invalid parquet file is refused.
    """
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [row("a", image_preview={"bytes": b"\x89PNG"}), row("b", PICTURE, image_preview={"bytes": b"\x89PNG"})]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "hle.parquet")

    assert load(jsonl(tmp_path, row("a"), row("b", PICTURE)), images="keep") == load(tmp_path / "hle.parquet", images="keep")
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"broken\.parquet: is not a readable parquet file: "):
        load(tmp_path / "broken.parquet")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If pyarrow is not installed, the error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(ConfigError, match=r"pyarrow is not installed: pip install 'pytest-agentbench\[hub\]'"):
        load(tmp_path / "hle.parquet")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (row("a", answer_type="essay"), "hle.jsonl:1: 'answer_type' must be one of exactMatch, multipleChoice, not 'essay'"),
        (row("a", answer=" "), "hle.jsonl:1: 'answer' must be a text that is not empty, not ' '"),
        (row(""), "hle.jsonl:1: 'id' must be a text that is not empty, not ''"),
        ({**row("a"), "image": 3}, "hle.jsonl:1: 'image' must be a URL or a data URI, or empty"),
        ([], "hle.jsonl:1: is a JSON list, must be an object"),
    ],
)
def test_invalid_rows(tmp_path: Path, wrong: object, message: str) -> None:
    """The error about an invalid row has the file, the line and the fault, and never the canary."""
    with pytest.raises(ConfigError) as caught:
        load(jsonl(tmp_path, wrong))

    assert str(caught.value).endswith(message)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{images: maybe}", "dataset.options.images must be one of skip, keep, not 'maybe'"),
        ("{pictures: keep}", "dataset format 'hle': no option 'pictures'; known: images"),
    ],
)
def test_options(tmp_path: Path, options: str, message: str) -> None:
    """A format has the options of its function. An unknown option or value is refused with the known ones."""
    jsonl(tmp_path, row("a"))

    with pytest.raises(ConfigError) as caught:
        suite(tmp_path, options)

    assert str(caught.value).endswith(message)


def test_missing_data(tmp_path: Path) -> None:
    """Because the exam is gated, a suite without its file raises MissingData with the address, the variable and the command, so it is
    skipped.
    """
    with pytest.raises(MissingData) as caught:
        suite(tmp_path)

    for words in ("hle.jsonl does not exist", URL, VARIABLE, "`agentbench download hle --revision main`"):
        assert words in str(caught.value)


def test_a_download_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download without a token is refused before any request, with the address and the variable."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.delenv(VARIABLE, raising=False)

    with pytest.raises(ConfigError) as caught:
        download("main", tmp_path / "data")
    assert GATED == str(caught.value)
    assert "https://huggingface.co/datasets/cais/hle" in GATED and "HF_TOKEN" in GATED
    assert not (tmp_path / "data").exists()


def test_the_sample() -> None:
    """The sample has twelve questions of our own, on the eight subjects of the exam and with both kinds of answers."""
    shipped = load_suite(SAMPLE / "suite.yaml")

    assert 12 == len(shipped.scenarios)
    subjects = {each.metadata["category"] for each in shipped.scenarios}
    assert {"Math", "Physics", "Chemistry", "Biology/Medicine", "Computer Science/AI", "Engineering"} < subjects
    assert 8 == len(subjects)
    assert {"exactMatch": 8, "multipleChoice": 4} == {
        kind: sum(each.metadata["answer_type"] == kind for each in shipped.scenarios) for kind in ("exactMatch", "multipleChoice")
    }
    assert "sample" in shipped.dataset.name
