"""The address of a server without the user and password that curl reads from a URL, and the header that these stand for."""

from __future__ import annotations

import base64
import re
from typing import Self
from urllib.parse import unquote_to_bytes

_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)@")

_ANY_USERINFO = re.compile(r"://[^/?#\s,|@]*@")


class LoginUrl(str):
    """A URL whose text contains no user and no password. A text without them is kept as it is.

    The password, or the user of a URL without a password, is redacted from then on.
    """

    __slots__ = ("authorization",)

    authorization: str  # value of the HTTP header, "Basic ..."; empty if the URL has no user

    def __new__(cls, text: str) -> Self:
        if isinstance(text, cls):
            return text
        found = _USERINFO.match(text)
        url = super().__new__(cls, text if found is None else found[1] + text[found.end() :])
        url.authorization = _basic(found[2]) if found is not None else ""
        return url


def without_logins(text: object) -> str:
    """Returns a text without the users and passwords of the URLs in it."""
    return _ANY_USERINFO.sub("://", str(text))


def _basic(userinfo: str) -> str:
    """Returns the value of the header, and has all that contains the password redacted."""
    from pytest_agentbench.lib.redact import is_telling, keep_secret  # here: a session without such a URL needs none of its patterns

    user, _, password = userinfo.partition(":")
    if not user and not password:
        return ""
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    coded = base64.b64encode(pair).decode()
    secret = password or user
    decoded = unquote_to_bytes(secret).decode(errors="surrogateescape")
    at = "" if is_telling(userinfo) else "@"
    keep_secret(f"{userinfo}{at}", f"Basic {coded}", *filter(is_telling, (secret, decoded, coded)))
    return f"Basic {coded}"
