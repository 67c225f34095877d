"""What `--agentbench-ab` may say: the arms of a session, as a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.options import LoginUrl
from pytest_agentbench.suites.arms import AGENT, BACKEND, CONCURRENCY, DEFAULT, KINDS, MODEL, OF_AGENT, OF_BACKEND, SETTING, VARIANT, Arm

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
MOST_ARMS = 12  # every one costs all scenarios again, and each comparison makes the others' intervals wider
LISTED = "BACKEND,BACKEND, agent:KIND,agent:KIND, variant:NAME,variant:NAME, model:NAME,model:NAME or set:PATH=VALUE|VALUE"


def parse_arms(text: str) -> tuple[Arm, ...]:
    """The arms that `A,B,C`, `NAME=A,NAME=B` or `set:PATH=VALUE|VALUE` speaks of; none of an empty text.

    Raises ValueError that says what would work.
    """
    if not text.strip():
        return ()
    arms = tuple(arm for entry in text.split(",") for arm in _arms(entry.strip()))
    if not 2 <= len(arms) <= MOST_ARMS or not all(arm.value for arm in arms):
        raise ValueError(f"2 to {MOST_ARMS} arms: {LISTED}, each with NAME= in front if you like")
    if len({(arm.kind, arm.path) for arm in arms}) > 1:
        raise ValueError("arms of one kind, and of one setting: what differs in several ways cannot be told apart")
    if twin := _twin(arms):
        raise ValueError(f"arms with different names, such as old={twin.written},new={twin.written}")
    return arms


def _arms(entry: str) -> Iterator[Arm]:
    """One arm; of a setting one for each value."""
    name, equals, rest = entry.partition("=")
    if not equals or not NAME.fullmatch(name):
        name, rest = "", entry
    kind, value = next(((kind, rest.removeprefix(f"{kind}:")) for kind in KINDS[1:] if rest.startswith(f"{kind}:")), (BACKEND, rest))
    if kind == SETTING:
        yield from _of_setting(name, value)
    else:
        value = LoginUrl(value)
        yield _arm(name or _default_name(kind, value), kind, value)


def _of_setting(name: str, text: str) -> Iterator[Arm]:
    path, equals, listed = text.partition("=")
    values = [value.strip() for value in listed.split("|")]
    if not equals or not path or not all(values):
        raise ValueError("arms of a setting as set:PATH=VALUE|VALUE, for example set:concurrency=8|16")
    if path not in (CONCURRENCY, "model") and not path.startswith((OF_BACKEND, OF_AGENT)):
        raise ValueError(f"arms that differ in concurrency, agent.…, model or backend.…: all arms of a session share the rest, {path} too")
    if name and len(values) > 1:
        raise ValueError(f"arms that are named one by one, such as {name}=set:{path}={values[0]}")
    for value in values:
        arm = _arm(name or _value_name(path, LoginUrl(value)), SETTING, f"{path}={value}")
        _check_setting(arm, value)
        yield arm


def _arm(name: str, kind: str, value: str) -> Arm:
    if name == DEFAULT and (kind, value) != (VARIANT, DEFAULT):
        raise ValueError("arms that are not named `default`, which is the suite's own variant")
    return Arm(name, kind, value)


def _check_setting(arm: Arm, value: str) -> None:
    if arm.path == CONCURRENCY and (not value.isdecimal() or not int(value)):
        raise ValueError(f"arms whose concurrency is a whole number from 1 up, not {value}")
    try:
        _ = arm.setting
    except ConfigError as error:
        raise ValueError(f"arms whose values are YAML: {error}") from error


def _default_name(kind: str, value: str) -> str:
    """A word that can stand in a test id: a URL's host and port, a file's name without its ending, what is behind a colon or a slash."""
    if kind == AGENT:
        return _word(value.rpartition(":")[2])
    if kind == MODEL:
        return _word(value.rpartition("/")[2])
    if value.startswith(("http://", "https://")):
        return _word(urlsplit(value).netloc)
    return _word(PurePath(value).stem if kind == BACKEND else value)


def _value_name(path: str, value: str) -> str:
    """The value, `round_robin`, where it says by itself what it is; with the last part of its path, `concurrency_8`, where it does not."""
    alone = value[0].isalpha() and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", DEFAULT)
    return _word(value if alone else f"{path.rpartition('.')[2]}_{value}")


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", name).lstrip("_.")


def _twin(arms: Sequence[Arm]) -> Arm | None:
    """An arm that is called as one before it is; their folders may be on a disk that knows no capital letters."""
    names = [arm.name.lower() for arm in arms]
    return next((arm for place, arm in enumerate(arms) if names.index(arm.name.lower()) < place), None)
