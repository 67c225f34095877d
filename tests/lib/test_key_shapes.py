"""Redaction of keys that directly follow each other, and of passwords in JSON."""

from __future__ import annotations

import itertools
import json

import pytest

from pytest_agentbench.lib.redact import MARK, PublicText, Redactor


def test_a_password_of_a_record() -> None:
    """A text under the key `password` is redacted, however short it is, unless it is an expected value. Values of other types stay."""
    record = {"arguments": {"password": "pw", "Password": "of 1", "of": [{"password": {"deep": "pw"}}, {"password": 5}]}}

    redacted = json.loads(Redactor(public=PublicText(labels='{"password": "of 1"}'))(json.dumps(record)))

    assert {**record["arguments"], "password": MARK} == redacted["arguments"]


def test_keys_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that directly follow or overlap another secret are redacted, and so are several keys in a row."""
    monkeypatch.setenv("SHOP_KEY", "swordfish-0815x")
    keys = ["AKIAABCDEFGHIJKLMNOP", "ghp_abcdefghijklmnopqrstuvwxyz012345", "sk-proj-abc_DEF-ghi_JKL-mno", "AIza" + "x" * 35]

    for first, second in itertools.permutations([*keys, "swordfish-0815x"], 2):
        assert "<>" == Redactor().plain(f"<{first}{second}>").replace(MARK, "")
        assert {"a": "<>"} == json.loads(Redactor()(json.dumps({"a": f"<{first}{second}>"})).replace(MARK, ""))
    assert "<>" == Redactor().plain(f"<{''.join(keys)}>").replace(MARK, "")


def test_many_keys_without_a_gap() -> None:
    """Many keys in a row are all redacted, in time proportional to their number."""
    for text in ("AKIAABCDEFGHIJKLMNOP" * 2_000, "sk-" * 20_000):
        assert "" == Redactor().plain(text).replace(MARK, "")
