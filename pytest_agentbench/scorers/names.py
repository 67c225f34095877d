"""Tool names as scorers compare them."""

from __future__ import annotations


def normalised(name: str) -> str:
    """A name without its group prefix (up to the first `__`), case, `_`, `-` and outer spaces.

    `banking_tools__Get-Account-BALANCE` and `get_account_balance` are the same tool, and so are `a__search` and `b__search`.
    """
    group, separator, rest = name.partition("__")
    return (rest if separator else group).lower().strip().replace("_", "").replace("-", "")
