"""Backend YAMLs: keys, and the search by name."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec
from pytest_agentbench.backends.labels_spec import LabelsSpec
from pytest_agentbench.backends.spec import SessionTerms, find_backend, load_backend
from pytest_agentbench.backends.url import Url, UrlSpec
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import shipped

BACKEND_KEYS = "request_fields, context_length, name, model, thresholds, note, prices, roles, placement, nodes, kind"

FREE = {"currency": "USD", "input": 0, "output": 0}


def write(root: Path, file_name: str, **keys: Any) -> Path:
    """Writes backends/FILE_NAME of a project."""
    file = root / "backends" / file_name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(keys))
    return file


def test_a_name_is_a_file_of_the_project(tmp_path: Path) -> None:
    """A name stands for backends/NAME.yaml. It is also the name of the backend unless the file has another one."""
    write(tmp_path, "vllm.yaml", kind="url", url="http://127.0.0.1:8000/v1/", model="m")
    write(tmp_path, "other.yaml", kind="embedded", name="baseline", ttft_ms=5)

    assert UrlSpec(kind="url", name="vllm", url="http://127.0.0.1:8000/v1", model="m") == load_backend("vllm", tmp_path)
    assert EmbeddedSpec(kind="embedded", name="baseline", ttft_ms=5) == load_backend("other", tmp_path)


def test_a_file_may_lie_anywhere(tmp_path: Path) -> None:
    """A name that ends in .yaml is a path, relative to the project or absolute."""
    file = write(tmp_path, "mine.yml", kind="embedded")

    assert file == find_backend("backends/mine.yml", tmp_path)
    assert file == find_backend(str(file), tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"^there is no backend file no.yaml: {tmp_path}/no.yaml does not exist$"):
        find_backend("no.yaml", tmp_path)


def test_a_shipped_backend(tmp_path: Path) -> None:
    """The embedded backend needs no file in the project. A file in the project replaces it."""
    assert shipped("backends") / "embedded.yaml" == find_backend("embedded", tmp_path)
    assert "lexical" == getattr(load_backend("embedded", tmp_path), "policy", None)

    own = write(tmp_path, "embedded.yaml", kind="embedded", policy="script")

    assert own == find_backend("embedded", tmp_path)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    """The message for an unknown name lists the backends of the project and the shipped ones."""
    write(tmp_path, "mine.yaml", kind="url", url="http://x")
    write(tmp_path, "mine.script.yaml")

    with pytest.raises(ConfigError) as caught:
        load_backend("vlm", tmp_path)

    found = re.fullmatch(
        r"no backend 'vlm' \(did you mean 'vllm'\?\); known: (.*) \(or give a YAML file, or a URL that starts with http\)",
        str(caught.value),
    )
    assert found is not None
    assert {"embedded", "mine", "vllm"} <= set(found[1].split(", "))
    assert "mine.script" not in found[1]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://example.org/v1/"])
def test_a_url_needs_no_file(tmp_path: Path, url: str) -> None:
    """A URL is a backend. Its other keys can be set for a run."""
    spec = load_backend(url, tmp_path, [("model", "m"), ("api_key_env", "SHOP_KEY")])

    assert UrlSpec(kind="url", name="url", url=url.rstrip("/"), model="m", api_key_env="SHOP_KEY") == spec


def test_changes_come_before_the_check(tmp_path: Path) -> None:
    """--agentbench-set backend.… changes the file's values, at any depth, and is checked like them."""
    write(tmp_path, "mine.yaml", kind="embedded", thresholds={"shop": {"tsq": 0.1}})

    spec = load_backend("mine", tmp_path, [("ttft_ms", 40), ("thresholds.shop.tsq", 0.2)])

    assert isinstance(spec, EmbeddedSpec)
    assert (40.0, {"shop": {"tsq": 0.2}}) == (spec.ttft_ms, spec.thresholds)
    with pytest.raises(ConfigError, match="ttft_ms: must be greater than or equal to 0, not -1"):
        load_backend("mine", tmp_path, [("ttft_ms", -1)])


def test_a_script_lies_beside_its_backend(tmp_path: Path) -> None:
    """The script of the policy `script` is relative to the YAML that names it."""
    write(tmp_path, "mine.yaml", kind="embedded", policy="script", script="answers/mine.yaml")

    assert str(tmp_path / "backends/answers/mine.yaml") == getattr(load_backend("mine", tmp_path), "script", None)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "must have `services` (a stack), or `kind: embedded`, `kind: url` or `kind: recorded`; it has: nothing"),
        ({"kind": None}, "kind must be one of embedded, url, stack, recorded, not None"),
        ({"kind": "vllm"}, "kind must be one of embedded, url, stack, recorded, not 'vllm'"),
        ({"kind": ["url"]}, "kind must be one of embedded, url, stack, recorded, not ['url']"),
        ({"kind": "url"}, "the key 'url' is missing"),
        ({"kind": "embedded", "policy": "lexicl"}, "no policy 'lexicl' (did you mean 'lexical'?); known: careless, lexical, script"),
        ({"kind": "url", "url": "localhost:8000"}, "url: must start with http:// or https://, not 'localhost:8000'"),
        ({"kind": "url", "url": "http://x", "port": 5}, f"unknown key 'port'; known keys: {BACKEND_KEYS}, url, api_key_env, ca_file"),
        (
            {"kind": "embedded", "prot": 5},
            f"unknown key 'prot' (did you mean 'port'?); known keys: {BACKEND_KEYS}, policy, script, port, ttft_ms, itl_ms",
        ),
        ({"kind": "embedded", "port": 70000}, "port: must be less than or equal to 65535, not 70000"),
        ({"kind": "embedded", "max_concurrency": 0}, "max_concurrency: must be greater than or equal to 1, not 0"),
        ({"kind": "embedded", "thresholds": {"tsq": 0.5}}, "thresholds.tsq: must be a mapping of keys, not 0.5"),
        ({"kind": "embedded", "prices": {"currency": "USD", "input": 1}}, "the key 'prices.output' is missing"),
        ({"kind": "embedded", "prices": {**FREE, "input": -1}}, "prices.input: must be greater than or equal to 0, not -1"),
        ({"kind": "embedded", "prices": {**FREE, "currency": "$"}}, "prices.currency: must be three capital letters, such as EUR, not '$'"),
        (
            {"kind": "embedded", "prices": {**FREE, "inpt": 1}},
            "unknown key 'prices.inpt' (did you mean 'input'?); known keys: currency, input, cached_input",
        ),
        ({"kind": "embedded", "thresholds": {"shop": {"tsq": "high"}}}, "thresholds.shop.tsq: must be a number"),
    ],
)
def test_faulty_backends(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    """The message for a fault has the file, the key and the known values."""
    file = write(tmp_path, "mine.yaml", **keys)

    with pytest.raises(ConfigError, match=f"^{re.escape(f'{file}: {sentence}')}"):
        load_backend("mine", tmp_path)


def test_thresholds_must_be_finite(tmp_path: Path) -> None:
    """A threshold must be finite, because no score is below `nan`."""
    file = tmp_path / "mine.yaml"
    file.write_text("{kind: embedded, thresholds: {shop: {tsq.mean: .nan}}}")

    with pytest.raises(ConfigError, match=re.escape("thresholds.shop.tsq.mean: must be a finite number")):
        load_backend("mine.yaml", tmp_path)


def test_each_kind_has_its_backend() -> None:
    """A spec creates the backend of its kind, with name, note and thresholds."""
    embedded = EmbeddedSpec(kind="embedded", name="e", note="a baseline", thresholds={"shop": {"tsq": 0.1}}).make(SessionTerms())
    url = UrlSpec(kind="url", name="u", url="http://x", api_key_env="SHOP_KEY").make(SessionTerms())

    assert (Embedded, Url) == (type(embedded), type(url))
    assert ("e", "a baseline", {"shop": {"tsq": 0.1}}) == (embedded.name, embedded.note, embedded.thresholds)
    assert {"kind": "url", "name": "u", "url": "http://x", "api_key_env": "SHOP_KEY"} == url.description


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"headers": {"a b": "c"}}, "headers: 'a b' is not a valid header"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers: 'a' is not a valid header"),
        ({"headers": {"Host": "other"}}, "headers: 'host' cannot be set; the tap sets headers that belong to a connection"),
        ({"headers": {"Authorization": "x"}, "api_key_env": "KEY"}, "api_key_env and a header `authorization` are both set; remove one"),
        ({"url": "http://u:password-0815@x", "api_key_env": "KEY"}, "`url` contains a user or password, and api_key_env or a header"),
        ({"url": "http://u:password-0815@x", "headers": {"Authorization": "x"}}, "is set, too; remove one"),
        ({"url": "ftp://u:password-0815@x"}, "url: must start with http:// or https://, not 'ftp://x'"),
        ({"metrics": "http://u:password-0815@x"}, "metrics: must not contain a user or password"),
        ({"rate_limit": {"requests_per_minute": 0}}, "rate_limit.requests_per_minute: must be greater than 0, not 0"),
        ({"labels": "dynamic"}, "labels.kind: must be 'none', 'thunderagent', 'dynamo' or 'session', not 'dynamic'"),
    ],
)
def test_faulty_urls(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    """Invalid headers, rates and labels are refused before anything boots."""
    file = write(tmp_path, "mine.yaml", kind="url", **{"url": "http://x", **keys})

    with pytest.raises(ConfigError, match=re.escape(sentence)) as raised:
        load_backend(str(file), tmp_path)

    assert "password-0815" not in str(raised.value)


@pytest.mark.parametrize("in_yaml", [False, True], ids=["name", "yaml"])
def test_user_and_password_of_a_url(tmp_path: Path, in_yaml: bool) -> None:
    """User and password of a URL become a header, as with curl. They appear in no description and no error."""
    given = "http://bob:pass%40word-0815@127.0.0.1:8000/v1"
    name = str(write(tmp_path, "mine.yaml", kind="url", url=given)) if in_yaml else given

    backend = load_backend(name, tmp_path)

    endpoint = backend.running_endpoint()
    assert endpoint is not None
    assert "http://127.0.0.1:8000/v1" == endpoint.url
    assert {"authorization": f"Basic {base64.b64encode(b'bob:pass@word-0815').decode()}"} == endpoint.headers
    made = backend.make(SessionTerms())
    assert "word-0815" not in repr((made.description, made.identity))
    with pytest.raises(ConfigError) as raised:
        load_backend(name, tmp_path, [("url.part", 1)])
    assert "word-0815" not in str(raised.value)


def test_labels_may_be_a_word(tmp_path: Path) -> None:
    """`labels: dynamo` means `labels: {kind: dynamo}`."""
    file = write(tmp_path, "mine.yaml", kind="url", url="http://x", labels="dynamo")
    spec = load_backend(str(file), tmp_path)

    assert isinstance(spec, UrlSpec)
    assert LabelsSpec(kind="dynamo") == spec.labels
