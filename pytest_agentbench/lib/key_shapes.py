"""Finds API keys of known formats in texts, and recognises names of environment variables that indicate a secret."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator

_WORDS = "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL"
#: Last words of names that describe a secret but do not hold it, such as SSL_KEY_FILE.
_NOT_SECRET = "FILE|PATH|DIR|NAME|TYPE|URL|URI|HOST|PORT|USER|SOCK|TTL|SIZE|LIMIT|LENGTH|VERSION|ALGORITHM|MODE"

#: Names of environment variables that hold secrets: API_KEY, PGPASSWORD, GIT_AUTH, and SECRET_KEY_BASE or STRIPE_KEY_LIVE.
SECRET_NAME = re.compile(
    rf"({_WORDS}|(?<![^_])(PASS|PAT|AUTH))S?(_?\d+)?$|(?<![^_])(API)?({_WORDS})S?_(?!(.*_)?({_NOT_SECRET})$)", re.IGNORECASE
)

#: Before a key: no letter or digit, unless it belongs to an escape sequence.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4})|(?<=%[0-9A-Fa-f]{2}))"

_PEM = r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
#: At least 20 characters without five dashes in a row. Many beginnings without an end must not make the search slow.
_PEM_BODY = r"(?=[A-Za-z0-9+/=\s\\:,-]{20})(?:[A-Za-z0-9+/=\s\\:,]++|-(?!----))++"
#: Lines that look like those of a key whose end is missing.
_PEM_LINES = r"(?:(?:\\+[nr]|\s)*(?:(?:Proc-Type|DEK-Info): ?[\w,-]+|[A-Za-z0-9+/]{16,}={0,2}))+"

#: Known formats: a beginning that is quick to search for, and a pattern that matches from there. The secret is the last group of the
#: pattern, or the whole match if it has no group.
_SHAPES = [
    (beginning, re.compile(pattern))
    for beginning, pattern in (
        ("sk-", rf"{_START}sk-[A-Za-z0-9_-]{{20,}}"),  # OpenAI, Anthropic, OpenRouter and others
        ("sk_live_", rf"{_START}sk_live_[A-Za-z0-9]{{16,}}"),  # Stripe
        ("hf_", rf"{_START}hf_[A-Za-z0-9]{{20,}}"),
        ("nvapi-", rf"{_START}nvapi-[A-Za-z0-9_-]{{20,}}"),
        *((f"gh{kind}_", rf"{_START}gh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"),
        ("github_pat_", rf"{_START}github_pat_[A-Za-z0-9_]{{22,}}"),
        ("glpat-", rf"{_START}glpat-[A-Za-z0-9_.-]{{20,}}"),  # GitLab; the next one is the token of a GitLab job
        ("glcbt-", rf"{_START}glcbt-[A-Za-z0-9_.-]{{20,}}"),
        ("AKIA", rf"{_START}AKIA[A-Z0-9]{{16}}"),
        ("ASIA", rf"{_START}ASIA[A-Z0-9]{{16}}"),
        ("xox", rf"{_START}xox[abeoprs]-[A-Za-z0-9-]{{10,}}"),
        ("xapp-", rf"{_START}xapp-[A-Za-z0-9-]{{10,}}"),
        ("AIza", rf"{_START}AIza[A-Za-z0-9_-]{{35}}"),
        ("ya29.", rf"{_START}ya29\.[A-Za-z0-9_-]{{20,}}"),
        ("GOCSPX-", rf"{_START}GOCSPX-[A-Za-z0-9_-]{{20,}}"),
        ("npm_", rf"{_START}npm_[A-Za-z0-9]{{36}}"),
        ("pypi-AgE", rf"{_START}pypi-AgE[A-Za-z0-9_-]{{50,}}"),
        ("wandb_v1_", rf"{_START}wandb_v1_[A-Za-z0-9_]{{20,}}"),
        ("local-", rf"{_START}local-[0-9a-f]{{40}}(?![0-9a-f])"),  # a self-hosted W&B server
        # 40 hexadecimal digits are usually a commit, so W&B must be named before them.
        *((name, rf"{name}.{{1,30}}?(?<![0-9a-f])([0-9a-f]{{40}})(?![0-9a-f])") for name in ("andb", "ANDB")),
        ("eyJ", rf"{_START}eyJ[A-Za-z0-9_-]{{8,1024}}\.eyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}"),  # JWT
        # A word without a digit is an ordinary word.
        *((word, rf"{word} {{1,4}}((?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{{20,}}={{0,2}})") for word in ("earer", "EARER", "Basic")),
        *(
            (header, rf"{header}\W{{1,12}}((?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{{16,}}={{0,2}})")
            for header in ("api-key", "Api-Key", "API-Key", "API-KEY")  # Azure, and x-api-key
        ),
        *((f"{mark}{name}=", rf"\{mark}{name}=([^&#\s\"'\\<>]{{4,}})") for mark in "?&" for name in ("api_key", "apikey", "api-key")),
        *(
            (word, pattern)
            for word in ("password", "Password", "PASSWORD")
            for pattern in (
                rf"{word}[\"']\s{{0,9}}:\s{{0,9}}([\"'])((?:(?!\1)[^\\]|\\.)++)",  # in JSON, or in the repr of a dict
                rf"{word}(\\{{1,15}})\"\s{{0,9}}:\s{{0,9}}\1\"((?:[^\"\\]|(?!\1\")\\++\"?)++)",  # in JSON within JSON
            )
        ),
        *((name, rf"{name}=([A-Za-z0-9+/]{{20,}}={{0,2}})") for name in ("AccountKey", "SharedAccessKey")),  # Azure
        ("hooks.slack.com/services/", r"hooks\.slack\.com/services/([A-Za-z0-9/]{20,})"),
        *((name, rf"{name}\W{{1,12}}([A-Za-z0-9+/]{{40}})(?![A-Za-z0-9+/])") for name in ("ws_secret_access_key", "WS_SECRET_ACCESS_KEY")),
        ("-----BEGIN ", rf"{_PEM}(?:{_PEM_BODY}-----END [A-Z ]{{0,30}}PRIVATE KEY-----|{_PEM_LINES})"),
        ("://", r"://[^/\s:@\"\\]{0,64}:([^/\s\"\\]{3,})@"),  # the password of a URL, which may contain an @
        ("://", r"://((?=[^/\s:@\"\\\d]*\d)[^/\s:@\"\\]{16,})@"),  # a token instead of user and password
    )
]

#: The formats that begin with _START, without it. A key directly after another secret has nothing before it that would match _START.
_BARE = [(beginning, re.compile(shape.pattern.removeprefix(_START))) for beginning, shape in _SHAPES if shape.pattern.startswith(_START)]
#: A key of one of these formats at the end of a text, possibly truncated.
_TRUNCATED_KEY = re.compile(rf"{_START}(?:{'|'.join(re.escape(beginning) for beginning, _ in _BARE)})[A-Za-z0-9_.-]{{3,256}}\Z")
_KEY_CHARACTER = re.compile(r"[A-Za-z0-9_.-]")  # characters of keys
_OVERLAP = 64  # characters at the end of a secret that may be the beginning of the next one, because they match both formats

_BASIC = re.compile(r"[Bb](?:asic|ASIC) {1,4}([A-Za-z0-9+/_-]{4,}+={0,2})")


def places_of_keys(text: str, others: Iterable[tuple[int, int]] = ()) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each key of a known format. `others` are places of other secrets; a key may follow these directly."""
    places = [*others]
    for beginning, pattern in _SHAPES:
        at = text.find(beginning)
        while at >= 0:
            key = pattern.match(text, at)
            if key:
                places.append(key.span(pattern.groups))
                yield places[-1]
            at = text.find(beginning, key.end() if key else at + 1)
    yield from _logins(text)
    ends: set[int] = set()
    while places:
        place = places.pop()
        if place[1] not in ends:
            ends.add(place[1])
            if (following := _adjacent_key(text, *place)) is not None:
                yield following
                places.append(following)


def place_of_truncated_key(text: str, end: int) -> tuple[int, int] | None:
    """Returns the place of a key that ends at `end` because the text was truncated there, or None."""
    window = text[max(0, end - 300) : end]
    match = _TRUNCATED_KEY.search(window)
    return None if match is None else (end - len(window) + match.start(), end)


def _adjacent_key(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Returns the place of a key that begins within a secret or directly after it, and ends after it. Returns None if there is none."""
    if not _KEY_CHARACTER.match(text, end):
        return None
    place = end, end
    first = max(start + 1, end - _OVERLAP)
    for beginning, pattern in _BARE:
        at = text.find(beginning, first, end + len(beginning))
        while at >= 0:
            key = pattern.match(text, at)
            if key and key.end() > place[1]:
                place = key.span()
            at = text.find(beginning, at + 1, end + len(beginning))
    return place if place[1] > end else None


def _logins(text: str) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each login in an HTTP header `Basic ...`: base64 of a printable text with a colon, of any length."""
    for match in _BASIC.finditer(text) if "asic " in text or "ASIC " in text else ():
        try:
            login = base64.urlsafe_b64decode(match[1].replace("+", "-").replace("/", "_")).decode()
        except ValueError:
            continue
        if ":" in login and login.isprintable():
            yield match.span(1)
