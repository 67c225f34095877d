"""Secrets are not written to files."""

from __future__ import annotations

import base64
import errno
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pytest_agentbench.lib.redact import MARK, PublicText, Redactor, scrub, tail


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
    """Keys of well-known formats are redacted everywhere: in a sentence, as a value, as a key, and after a line break."""
    record = {"log": f"use {key}, please", "nested": {"value": key, key: [f"x\n{key}\ny"]}}

    redacted = json.loads(Redactor()(json.dumps(record)))

    assert {"log": f"use {MARK}, please", "nested": {"value": MARK, MARK: [f"x\n{MARK}\ny"]}} == redacted


HEX = "0123456789abcdef0123456789abcdef01234567"
PEM = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f"wandb login {HEX} done", f"wandb login {MARK} done"),
        (f"https://wandb.ai says {HEX}", f"https://wandb.ai says {MARK}"),
        (f"local-{HEX}", MARK),
        (f"x-api-key: {HEX}, and", f"x-api-key: {MARK}, and"),
        (f'{{"X-API-Key": "{HEX}"}}', f'{{"X-API-Key": "{MARK}"}}'),
        (f"AccountName=shop;AccountKey={PEM}00==;Endpoint=x", f"AccountName=shop;AccountKey={MARK};Endpoint=x"),
        (f"Endpoint=sb://shop/;SharedAccessKey={PEM}00=", f"Endpoint=sb://shop/;SharedAccessKey={MARK}"),
        (f"-----BEGIN PRIVATE KEY-----\n{PEM}\n{PEM}\nand then it was cut", f"{MARK}\nand then it was cut"),
        (f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{PEM}", MARK),
        (f"api-key: {HEX[:32]}, and", f"api-key: {MARK}, and"),
        ("https://host/v1?api_key=pw-1&x=1", f"https://host/v1?api_key={MARK}&x=1"),
        ("https://host/v1?x=1&api_key=pw-1", f"https://host/v1?x=1&api_key={MARK}"),
        ('body {"user": "u", "password": "a b\\"c"}', f'body {{"user": "u", "password": "{MARK}"}}'),
        ("body {'user': 'u', 'password': 'a b\"c'}", f"body {{'user': 'u', 'password': '{MARK}'}}"),
        ("https://0123456789abcdefTOKEN@host/v1", f"https://{MARK}@host/v1"),
        ("https://bob:sw@rd@fish@host/v1", f"https://bob:{MARK}@host/v1"),
        ("Authorization: Basic YTpiMQ==, and", f"Authorization: Basic {MARK}, and"),
        ("sent basic YTpiMQ==", f"sent basic {MARK}"),
    ],
)
def test_keys_that_their_context_identifies(text: str, redacted: str) -> None:
    """Keys and passwords that only their context identifies are redacted, in plain text and in JSON."""
    assert redacted == Redactor().plain(text)
    assert {"a": redacted} == json.loads(Redactor()(json.dumps({"a": text})))
    assert {"a": json.dumps({"b": redacted})} == json.loads(Redactor()(json.dumps({"a": json.dumps({"b": text})})))


def test_a_commit_is_not_a_key() -> None:
    """40 hexadecimal digits are a secret only after certain words. A header value without a digit is ordinary text."""
    text = json.dumps(
        {"commit": HEX, "a": f"at {HEX}", "b": "x-api-key: authentication-is-required", "c": "-----BEGIN PRIVATE KEY----- is missing"}
    )

    assert text == Redactor()(text)


#: Places in a record where a value is a name, an id or an expected value, even if it equals a secret variable.
NAMED = {
    "suite": "find_item",
    "scenario": "find_item",
    "settings": {"kind": "find_item", "model": "find_item"},
    "tool_calls": [{"name": "find_item", "arguments": {"item": "a lamp", "find_item": 1}}],
    "drafts": [{"tool_calls": [{"name": "find_item"}]}],
    "expected": [{"tool": "find_item", "parameters": {"name": "find_item", "deep": [{"deeper": "with find_item"}]}}],
    "messages": [{"role": "assistant", "tool_calls": [{"id": "find_item", "function": {"name": "find_item"}}]}],
    "scores": {"find_item": {"value": 1.0}},
    "worst": [{"id": "find_item", "expected_tools": ["find_item"], "actual_tools": ["find_item", "find_item"]}],
}


def test_names_and_labels_are_never_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a secret value is also a name, an id, a tool, an argument name or an expected value, it stays there. Elsewhere it is redacted."""
    monkeypatch.setenv("CACHE_KEY", "find_item")
    text = {"answer": "find_item it is", "messages": [{"content": "find_item"}], "arguments": {"name": "find_item", "id": ["find_item"]}}

    redacted = json.loads(Redactor()(json.dumps({**NAMED, "text": text})))

    assert {**NAMED, "text": redacted["text"]} == redacted
    assert {
        "answer": f"{MARK} it is",
        "messages": [{"content": MARK}],
        "arguments": {"name": MARK, "id": [MARK]},
    } == redacted["text"]


def test_public_values_are_not_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is also a text of a suite stays in records, and an ordinary word stays everywhere.

    Both variables are reported without their values.
    """
    monkeypatch.setenv("CACHE_KEY", 'find "item"')
    monkeypatch.setenv("PGPASSWORD", "postgres")
    monkeypatch.setenv("SHOP_ACCESS", "password")
    monkeypatch.setenv("SHOP_KEY", "not-to-be-read")
    redactor = Redactor(["SHOP_ACCESS"], PublicText(json.dumps({"ask": 'find "item", please'})))
    text = {"a": 'find "item" in postgres', "b": "not-to-be-read", "c": "password"}

    assert {**text, "b": MARK, "c": MARK} == json.loads(redactor(json.dumps(text)))
    assert f"{MARK} in postgres" == redactor.plain('find "item" in postgres')
    assert [
        "PGPASSWORD: the value is an ordinary word, so it is not redacted anywhere; a secret needs another value",
        "CACHE_KEY: the value is a text of a suite, so it is not redacted in records and reports; a secret needs another value",
    ] == redactor.advice


def test_a_key_that_is_expected() -> None:
    """If an agent is expected to pass on a text that looks like a key, records keep that text."""
    key, other = "sk-abcdefghijklmnopqrstuvwx", "sk-zyxwvutsrqponmlkjihgfedc"
    record = {"tool_calls": [{"arguments": {"key": key}}, {"arguments": {"key": other}}], "expected": [{"parameters": {"key": key}}]}

    redacted = json.loads(Redactor(public=PublicText(labels=json.dumps([key])))(json.dumps(record)))

    assert [key, MARK] == [call["arguments"]["key"] for call in redacted["tool_calls"]]
    assert record["expected"] == redacted["expected"]


def test_ordinary_words_are_not_keys() -> None:
    """Words that contain the prefix of a key stay, and so do schemas, user names in URLs, and English that resembles a login."""
    text = json.dumps(
        {
            "a": "a risk-assessment-of-every-customer, task-force-of-the-twentieth-century",
            "b": "sk-short",
            "c": "Basic training of basic care, ssh://git@github.com, https://first.last@host",
            "d": {"password": {"type": "string"}, "required": ["password"]},
        }
    )

    assert text == Redactor()(text)


#: Names in which the word for a secret is not the last one.
IN_THE_MIDDLE = ["SECRET_KEY_BASE", "STRIPE_KEY_LIVE", "SIGNING_KEY_PEM", "APIKEY_PROD", "SHOP_TOKENS_V2"]


@pytest.mark.parametrize(
    "name", ["SHOP_API_KEY", "shop_token", "AWS_SECRET", "DB_PASSWORD", "SHOP_KEYS", "SMTP_PASSWD", "GIT_CREDENTIALS", *IN_THE_MIDDLE]
)
def test_values_of_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The value of a variable whose name looks secret is replaced, also inside other text."""
    monkeypatch.setenv(name, "correct horse")

    assert {"a": [f"the {MARK} battery", 5]} == json.loads(Redactor()('{"a": ["the correct horse battery", 5]}'))


@pytest.mark.parametrize(
    "name", ["SHOP_KEYBOARD", "MONKEY_BUSINESS", "SSL_KEY_FILE", "TOKEN_URL", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM"]
)
def test_other_variables_stay(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A variable with an ordinary name, or with the place of a secret, is not a secret.

    A short value is not redacted, because it occurs in ordinary text.
    """
    monkeypatch.setenv(name, "correct horse")
    monkeypatch.setenv("SHOP_KEY", "lamp")
    text = '{"a": "a lamp for the correct horse"}'

    assert text == Redactor()(text)


@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("value", ['pass"word', "back\\slash", "pässwörd", 'ä"\\\nö---', "tab\tulator"])
def test_values_that_json_writes_differently(monkeypatch: pytest.MonkeyPatch, value: str, ascii: bool) -> None:
    """A value is found in its JSON form, whether or not non-ASCII characters are escaped."""
    monkeypatch.setenv("SHOP_KEY", value)

    assert {"a": f"<{MARK}>"} == json.loads(Redactor()(json.dumps({"a": f"<{value}>"}, ensure_ascii=ascii)))


def test_the_longest_value_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a value begins with another one, the whole value is redacted."""
    monkeypatch.setenv("A_KEY", "password")
    monkeypatch.setenv("B_KEY", "password-and-more")

    assert {"a": MARK} == json.loads(Redactor()('{"a": "password-and-more"}'))


@pytest.mark.parametrize("value", ["tool_calls", "12345678", 'value": "', "judge_calls", ': "value'])
def test_a_record_stays_valid(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A value that equals a key of the record, a part of a number or JSON punctuation does not make the record invalid."""
    monkeypatch.setenv("SHOP_KEY", value)
    record = {"tool_calls": [{"value": "value", "at": 991234567899}], "judge_calls": {"a\\": '"'}, "text": f"<{value}>"}

    assert {**record, "text": f"<{MARK}>"} == json.loads(Redactor()(json.dumps(record)))


#: Patterns from which random keys of well-known formats are generated.
SHAPES = [
    r"sk-[A-Za-z0-9]{48}",
    r"sk-ant-api03-[A-Za-z0-9_-]{90}",
    r"sk-proj-[A-Za-z0-9_-]{70}",
    r"hf_[A-Za-z0-9]{34}",
    r"nvapi-[A-Za-z0-9_-]{64}",
    r"gh[pousr]_[A-Za-z0-9]{36}",
    r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    r"glpat-[A-Za-z0-9_-]{20}",
    r"(AKIA|ASIA)[A-Z0-9]{16}",
    r"xox[bp]-[0-9]{12}-[A-Za-z0-9]{24}",
    r"AIza[A-Za-z0-9_-]{35}",
    r"ya29\.[A-Za-z0-9_-]{60}",
    r"npm_[A-Za-z0-9]{36}",
    r"eyJ[A-Za-z0-9_-]{20}\.eyJ[A-Za-z0-9_-]{40}\.[A-Za-z0-9_-]{43}",
]
KEYS = st.one_of(*(st.from_regex(re.compile(shape, re.ASCII), fullmatch=True) for shape in SHAPES))

#: Texts before and after a key.
AROUND = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

#: How many levels of JSON within JSON contain the text.
DEPTHS = st.integers(0, 3)

#: Texts that resemble the beginning of a secret.
DECOYS = st.sampled_from(
    [
        "risk-assessment-of-every-customer",
        "sk-short",
        "the bearer of all these letters",
        "Basic understanding-of-many-things",
        "AKIAIO",
        "eyJ",
        "https://example.org:8000/a@b",
        "hf_datasets",
        "-----BEGIN CERTIFICATE-----",
        "ghp_",
        "://",
        "\\",
        '"',
        "é\u2028",
    ]
)
PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | AROUND | DECOYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(AROUND | DECOYS, inner, max_size=4),
    max_leaves=12,
)


def nested(text: str, depth: int, ascii: bool) -> str:
    for _ in range(depth):
        text = json.dumps({"arguments": text}, ensure_ascii=ascii)
    return text


@given(PLAIN_JSON, st.booleans())
def test_texts_without_secrets_are_unchanged(record: object, ascii: bool) -> None:
    """JSON and other texts without secrets are not changed by a single character."""
    text = json.dumps(record, ensure_ascii=ascii)

    assert text == Redactor()(text)
    assert text == Redactor().plain(text)
    assert text.encode() == Redactor().blanked(text.encode())


@given(KEYS, AROUND, AROUND, DEPTHS, st.booleans())
def test_no_key_is_left(key: str, before: str, after: str, depth: int, ascii: bool) -> None:
    """A key of a well-known format is redacted between any texts, and in JSON within JSON. The result is valid JSON."""
    assume(not re.search(r"[A-Za-z0-9]\Z", before))
    text = nested(f"{before}{key}{after}", depth + 1, ascii)

    redacted = Redactor()(text)

    assert key not in redacted
    assert {"arguments"} == set(json.loads(redacted))
    assert key not in Redactor().plain(text)
    assert key.encode() not in (blanked := Redactor().blanked(text.encode()))
    assert len(text.encode()) == len(blanked)


ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "as it is": lambda value: value,
    "in a URL": lambda value: quote(value, safe=""),
    "in a query": quote_plus,
    "in base64": lambda value: base64.b64encode(value.encode()).decode(),
    "in base64 for URLs": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "as a password of basic access": lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
    "in a repr": lambda value: repr(value)[1:-1],
    "in a repr with both quotes": lambda value: repr(f"{value}'\"")[1:-4],
    "in the repr of bytes": lambda value: repr(value.encode())[2:-1],
    "with its white space collapsed": lambda value: " ".join(value.split()),
    "as a password with more behind it": lambda value: base64.b64encode(f"bob:{value}:".encode()).decode(),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=8).filter(str.strip), AROUND, DEPTHS, st.booleans())
def test_no_value_is_left(monkeypatch: pytest.MonkeyPatch, encoding: str, value: str, around: str, depth: int, ascii: bool) -> None:
    """The value of a secret variable is redacted in every encoding, and the record is still valid JSON."""
    assume(len(value.strip()) >= 8 and not value.strip().isalpha())  # a single word is not a secret
    monkeypatch.setenv("SHOP_API_KEY", value)
    written = ENCODINGS[encoding](value)
    text = nested(f"{around}{written}{around}", depth + 1, ascii)
    redactor = Redactor()

    redacted = redactor(text)

    assume(core(written) not in f"{around}{MARK}arguments")
    assert {"arguments"} == set(json.loads(redacted))
    opened: str | None = redacted
    while opened is not None:
        assert core(written) not in opened
        opened = argument_of(opened)
    assert core(written) not in redactor.plain(f"{around}{written}{around}")
    assert core(written).encode() not in redactor.blanked(f"{around}{written}{around}".encode())


def core(written: str) -> str:
    """Returns the part of an encoded value that does not depend on the surrounding text, because base64 mixes both ends with it."""
    return written.rstrip("=")[-8:-2]


def argument_of(text: str) -> str | None:
    """Removes one level of JSON. Returns None if the text is not JSON, or a redaction mark replaced the level."""
    try:
        return str(json.loads(text)["arguments"])
    except (ValueError, LookupError, TypeError):
        return None


def test_a_log_is_scrubbed_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets in logs of services are overwritten in place, even across blocks.

    A service that is still running can append further lines.
    """
    monkeypatch.setenv("SHOP_PASSWORD", "swörd-fish-0815")
    line = f"logged in with sk-{'a' * 48} and swörd-fish-0815\n"
    log = tmp_path / "backend" / "worker-0.log"
    log.parent.mkdir()
    harmless = f"{'.' * ((1 << 20) - (1 << 14) - 2)}risk-assessment-of-every-customer"  # the second block begins within this text
    straddling = f"{harmless.ljust((1 << 20) - 60, '.')} key=sk-{'a' * 100}\n"  # the key crosses the end of the first block
    with log.open("a", encoding="utf-8") as service:
        service.write(straddling + line * 30_000 + "a word, risk-assessment-of-every-customer\n" * 60_000)
        service.flush()

        assert ([log], {}) == scrub(tmp_path, Redactor())
        service.write("still here\n")

    text = log.read_text(encoding="utf-8")
    assert [
        f"{harmless.ljust((1 << 20) - 60, '.')} key=[redacted]{'*' * 93}",
        *["logged in with [redacted]" + "*" * 41 + " and [redacted]" + "*" * 6] * 30_000,
        *["a word, risk-assessment-of-every-customer"] * 60_000,
        "still here",
    ] == text.splitlines()
    assert ([], {}) == scrub(tmp_path, Redactor())


def test_the_end_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of logs in errors and command output are redacted."""
    monkeypatch.setenv("SHOP_PASSWORD", "correct horse")
    (tmp_path / "engine.log").write_text(f"one\nthe correct horse has sk-{'a' * 40}\n")

    assert ["one", f"the {MARK} has {MARK}"] == tail(tmp_path / "engine.log")


def test_a_log_that_cannot_be_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be redacted is reported with the cause. The logs before and after it are redacted."""
    monkeypatch.setenv("SHOP_PASSWORD", "swordfish-0815")
    logs = [tmp_path / f"{name}.log" for name in "abc"]
    for log in logs:
        log.write_text("password swordfish-0815\n")
    logs[1].unlink()
    shutil.copy("/bin/sleep", logs[1])
    with subprocess.Popen([str(logs[1]), "60"]) as running:  # not even root may write to the file of a running program
        try:
            cleaned, failed = scrub(tmp_path, Redactor())
        finally:
            running.kill()

    assert ([logs[0], logs[2]], [logs[1]]) == (cleaned, [*failed])
    assert errno.ETXTBSY == failed[logs[1]].errno
