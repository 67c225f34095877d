"""URLs that contain a user and a password."""

from __future__ import annotations

import base64
import copy

import pytest

from pytest_agentbench.lib.options import LoginUrl, without_logins
from pytest_agentbench.lib.redact import MARK, Redactor


@pytest.mark.parametrize(
    ("text", "url", "pair"),
    [
        ("http://bob:secret@host:1/v1", "http://host:1/v1", "bob:secret"),
        ("https://bob:p%40ss%3A@host", "https://host", "bob:p@ss:"),
        ("http://bob:a@b@host", "http://host", "bob:a@b"),
        ("http://token@host", "http://host", "token:"),
        ("http://:secret@host", "http://host", ":secret"),
        ("http://@host", "http://host", None),
        ("http://host/a@b?c=@d", "http://host/a@b?c=@d", None),
        ("embedded", "embedded", None),
    ],
)
def test_the_login_of_a_url(text: str, url: str, pair: str | None) -> None:
    """The text of a URL has no user and no password. The header has both, with percent escapes decoded. Copies keep the header."""
    for read in (LoginUrl(text), LoginUrl(LoginUrl(text)), copy.deepcopy(LoginUrl(text))):
        assert url == read
        assert ("" if pair is None else f"Basic {base64.b64encode(pair.encode()).decode()}") == read.authorization


def test_a_password_is_redacted() -> None:
    """After a URL is read, its password is redacted as written, decoded, and as sent in base64.

    A short one is redacted only inside URLs.
    """
    LoginUrl("http://u:swordfish%2D0816@host")
    LoginUrl("http://u:pw@host")

    plain = Redactor().plain

    coded = base64.b64encode(b"u:swordfish-0816").decode()
    for secret in ("swordfish%2D0816", "swordfish-0816", coded):
        assert f"it said {MARK}." == plain(f"it said {secret}.")
    assert f"http://{MARK}host" == plain("http://u:pw@host")
    assert "pw" == plain("pw")


def test_urls_in_a_text() -> None:
    """The user and password of each URL in a text are removed."""
    assert "a=http://x/v1,b=https://y/@z" == without_logins("a=http://u:p@x/v1,b=https://q:r@y/@z")
