"""Secrets do not reach a file."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.redact import MARK, Redactor


@pytest.mark.parametrize(
    "key",
    [
        "sk-abcdefghijklmnopqrstuvwx",
        "sk-proj-abc_DEF-ghi_JKL-mno",
        "hf_abcdefghijklmnopqrstuvwx",
        "nvapi-abc-DEF_ghijklmnopqrstuv",
        "ghp_abcdefghijklmnopqrstuvwxyz012345",
        "AKIAABCDEFGHIJKLMNOP",
        "xoxb-1234567890-abcdef",
    ],
)
def test_known_patterns(key: str) -> None:
    """Keys of well-known makers are replaced wherever they stand: in a sentence, as a value, as a key, after a line break."""
    record = {"log": f"use {key}, please", "nested": {"value": key, key: [f"x\n{key}\ny"]}}

    redacted = json.loads(Redactor()(json.dumps(record)))

    assert {"log": f"use {MARK}, please", "nested": {"value": MARK, MARK: [f"x\n{MARK}\ny"]}} == redacted


def test_ordinary_words_are_no_keys() -> None:
    """Words that contain the beginning of a key stay."""
    text = json.dumps({"a": "a risk-assessment-of-every-customer, task-force-of-the-twentieth-century", "b": "sk-short"})

    assert text == Redactor()(text)


@pytest.mark.parametrize("name", ["SHOP_API_KEY", "shop_token", "AWS_SECRET", "DB_PASSWORD", "SHOP_KEYS", "SMTP_PASSWD", "GIT_CREDENTIALS"])
def test_values_of_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The value of a variable whose name looks secret is replaced, also inside other text."""
    monkeypatch.setenv(name, "correct horse")

    assert {"a": [f"the {MARK} battery", 5]} == json.loads(Redactor()('{"a": ["the correct horse battery", 5]}'))


def test_other_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable with an ordinary name is no secret, and a short value would blank out ordinary text."""
    monkeypatch.setenv("SHOP_KEYBOARD", "correct horse")
    monkeypatch.setenv("SHOP_KEY", "lamp")
    text = '{"a": "a lamp for the correct horse"}'

    assert text == Redactor()(text)


@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("value", ['pass"word', "back\\slash", "pässwörd", 'ä"\\\nö---', "tab\tulator"])
def test_values_that_json_writes_differently(monkeypatch: pytest.MonkeyPatch, value: str, ascii: bool) -> None:
    """A value is found in the form that JSON gives it, whether the writer escapes letters or not."""
    monkeypatch.setenv("SHOP_KEY", value)

    assert {"a": f"<{MARK}>"} == json.loads(Redactor()(json.dumps({"a": f"<{value}>"}, ensure_ascii=ascii)))


def test_the_longest_value_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that begins with another one leaves no rest behind."""
    monkeypatch.setenv("A_KEY", "password")
    monkeypatch.setenv("B_KEY", "password-and-more")

    assert {"a": MARK} == json.loads(Redactor()('{"a": "password-and-more"}'))


@pytest.mark.parametrize("value", ["messages", "12345678", 'value": "', "settings", ': "value'])
def test_a_record_stays_a_record(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A value that also is one of our keys, a part of a number or of JSON's punctuation does not break the record."""
    monkeypatch.setenv("SHOP_KEY", value)
    record = {"messages": [{"value": "value", "at": 991234567899}], "settings": {"a\\": '"'}, "text": f"<{value}>"}

    assert {**record, "text": f"<{MARK}>"} == json.loads(Redactor()(json.dumps(record)))
