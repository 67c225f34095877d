"""Files with a prediction trie of the NeMo Agent Toolkit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_trie import read_trie, write_trie
from pytest_agentbench.metrics.prediction_trie import CallPrediction, PredictedNumber, TrieNode

NUMBER = {"sample_count": 2, "mean": 1.5, "p50": 1.5, "p90": 1.9, "p95": 1.95}
OTHER = {"sample_count": 0, "mean": 0.0, "p50": 0.0, "p90": 0.0, "p95": 0.0}
PREDICTION = {"remaining_calls": NUMBER, "interarrival_ms": OTHER, "output_tokens": NUMBER, "latency_sensitivity": 3}
CHILD = {"name": "shop", "predictions_by_call_index": {"1": PREDICTION}, "predictions_any_index": PREDICTION, "children": {}}

#: The root of a file as the toolkit writes it.
WRITTEN = {"name": "root", "predictions_by_call_index": {}, "predictions_any_index": None, "children": {"shop": CHILD}}

EXPECTED = CallPrediction(PredictedNumber(2, 1.5, 1.5, 1.9, 1.95), PredictedNumber(), PredictedNumber(2, 1.5, 1.5, 1.9, 1.95), 3)
ROOT = TrieNode("root", {}, None, {"shop": TrieNode("shop", {"1": EXPECTED}, EXPECTED)})


def test_a_file_of_the_toolkit(tmp_path: Path) -> None:
    """A file has exactly the keys and values of the toolkit's, and is read back as it was."""
    file = tmp_path / "trie.json"
    write_trie(file, "flow", ROOT)
    content = json.loads(file.read_text())

    assert ["version", "generated_at", "workflow_name", "root"] == [*content]
    assert ("1.0", "flow", WRITTEN) == (content["version"], content["workflow_name"], content["root"])
    assert ROOT == read_trie(file)


def test_a_file_without_sensitivities(tmp_path: Path) -> None:
    """Files of the toolkit may lack sensitivities, because older versions did not compute them."""
    file = tmp_path / "trie.json"
    prediction = {name: value for name, value in PREDICTION.items() if name != "latency_sensitivity"}
    file.write_text(json.dumps({"version": "1.0", "root": {**WRITTEN, "predictions_any_index": prediction}}))
    read = read_trie(file).predictions_any_index

    assert read is not None
    assert None is read.latency_sensitivity


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"version": "2.0", "root": WRITTEN}, "version '2.0', must be '1.0'"),
        ({"version": "1.0"}, "the key 'root' is missing"),
        ({"version": "1.0", "root": {**WRITTEN, "predictions_by_call_index": {"1": 3}}}, "must be a prediction trie"),
    ],
)
def test_other_files(tmp_path: Path, content: object, sentence: str) -> None:
    """A file that is no trie of this version is an error that names the file."""
    file = tmp_path / "trie.json"
    file.write_text(json.dumps(content))

    with pytest.raises(ConfigError, match=sentence) as error:
        read_trie(file)

    assert str(file) in str(error.value)
