"""One thing that a backend needs, and whether it is here."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Check(NamedTuple):
    name: str
    state: Literal["ok", "missing", "unknown", "absent"]
    detail: str
    fix: str = ""  # what to do where it is not ok, or who needs it


def ok(name: str, detail: str) -> Check:
    return Check(name, "ok", detail)


def missing(name: str, detail: str, fix: str) -> Check:
    return Check(name, "missing", detail, fix)


def unknown(name: str, detail: str, fix: str = "") -> Check:
    return Check(name, "unknown", detail, fix)


def absent(name: str, detail: str, need: str) -> Check:
    """Not here, and nothing that was examined needs it."""
    return Check(name, "absent", detail, need)
