"""The shapes of known kinds of keys, wherever they stand in a text, and the names of variables that hold secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORDS = "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL"
#: Last words of a name that says where a secret is, or of which kind, and is none: SSL_KEY_FILE.
_ABOUT = "FILE|PATH|DIR|NAME|TYPE|URL|URI|HOST|PORT|USER|SOCK|TTL|SIZE|LIMIT|LENGTH|VERSION|ALGORITHM|MODE"

#: Names of environment variables that hold secrets: API_KEY, PGPASSWORD, GIT_AUTH, and SECRET_KEY_BASE or STRIPE_KEY_LIVE.
SECRET_NAME = re.compile(
    rf"({_WORDS}|(?<![^_])(PASS|PAT|AUTH))S?(_?\d+)?$|(?<![^_])(API)?({_WORDS})S?_(?!(.*_)?({_ABOUT})$)", re.IGNORECASE
)

#: What stands before a key: no letter or digit, or one that is the rest of an escape.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4})|(?<=%[0-9A-Fa-f]{2}))"

_PEM = r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
#: At least 20 characters that hold no five dashes, so that many beginnings without an end cost little.
_PEM_BODY = r"(?=[A-Za-z0-9+/=\s\\:,-]{20})(?:[A-Za-z0-9+/=\s\\:,]++|-(?!----))++"
#: Of a key without an end, what looks like its lines.
_PEM_LINES = r"(?:(?:\\+[nr]|\s)*(?:(?:Proc-Type|DEK-Info): ?[\w,-]+|[A-Za-z0-9+/]{16,}={0,2}))+"

#: Known shapes: what to look for, which is quick, and the whole of it from there. The group is the secret, without one it is all of it.
_SHAPES = [
    (beginning, re.compile(pattern))
    for beginning, pattern in (
        ("sk-", rf"{_START}sk-[A-Za-z0-9_-]{{20,}}"),  # OpenAI, Anthropic, OpenRouter and others
        ("sk_live_", rf"{_START}sk_live_[A-Za-z0-9]{{16,}}"),  # Stripe
        ("hf_", rf"{_START}hf_[A-Za-z0-9]{{20,}}"),
        ("nvapi-", rf"{_START}nvapi-[A-Za-z0-9_-]{{20,}}"),
        *((f"gh{kind}_", rf"{_START}gh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"),
        ("github_pat_", rf"{_START}github_pat_[A-Za-z0-9_]{{22,}}"),
        ("glpat-", rf"{_START}glpat-[A-Za-z0-9_.-]{{20,}}"),  # GitLab, and the token of a job there
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
        ("local-", rf"{_START}local-[0-9a-f]{{40}}(?![0-9a-f])"),  # a W&B server of one's own
        # 40 hexadecimal digits are a commit, unless W&B is named before them
        *((name, rf"{name}.{{1,30}}?(?<![0-9a-f])([0-9a-f]{{40}})(?![0-9a-f])") for name in ("andb", "ANDB")),
        ("eyJ", rf"{_START}eyJ[A-Za-z0-9_-]{{8,}}\.eyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}"),  # JWT
        # a word of so many letters without a digit is English
        *((word, rf"{word} {{1,4}}((?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{{20,}}={{0,2}})") for word in ("earer", "EARER", "Basic")),
        *(
            (header, rf"{header}\W{{1,12}}((?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{{16,}}={{0,2}})")
            for header in ("x-api-key", "X-Api-Key", "X-API-Key", "X-API-KEY")
        ),
        *((name, rf"{name}=([A-Za-z0-9+/]{{20,}}={{0,2}})") for name in ("AccountKey", "SharedAccessKey")),  # Azure
        ("hooks.slack.com/services/", r"hooks\.slack\.com/services/([A-Za-z0-9/]{20,})"),
        *((name, rf"{name}\W{{1,12}}([A-Za-z0-9+/]{{40}})(?![A-Za-z0-9+/])") for name in ("ws_secret_access_key", "WS_SECRET_ACCESS_KEY")),
        ("-----BEGIN ", rf"{_PEM}(?:{_PEM_BODY}-----END [A-Z ]{{0,30}}PRIVATE KEY-----|{_PEM_LINES})"),
        ("://", r"://[^/\s:@\"\\]{0,64}:([^@/\s\"\\]{3,})@"),  # the password of a URL
    )
]


def places_of_keys(text: str) -> Iterator[tuple[int, int]]:
    """Where keys of known shapes are: start, and end."""
    for beginning, pattern in _SHAPES:
        at = text.find(beginning)
        while at >= 0:
            key = pattern.match(text, at)
            if key:
                yield key.span(pattern.groups)
            at = text.find(beginning, key.end() if key else at + 1)
