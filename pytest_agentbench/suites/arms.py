"""The arms of an A/B session: parses `--agentbench-ab`, and makes a variant of a suite for each arm. Also names
the cache policies, which say what the prefix cache contains when measuring begins.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.options import LoginUrl
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import SUITE_FILE, Suite, in_place_of

BACKEND, AGENT, VARIANT, MODEL, SETTING, SETTINGS = KINDS = ("backend", "agent", "variant", "model", "set", "settings")
DEFAULT = "default"
CONCURRENCY, OF_BACKEND, OF_AGENT = "concurrency", "backend.", "agent."  # settings, and prefixes of settings, that arms may differ in

#: The name or YAML of a backend with a changed setting: `NAME[PATH=VALUE]`.
CHANGED_BACKEND = re.compile(r"(?!https?://)([^\[\]]+)\[([^\[\]=]+)=(.*)\]")

#: Content of the prefix cache when measuring begins: nothing, the first calls of the measured rollouts, or whatever is in it.
COLD, PRIMED, CARRY = CACHE_POLICIES = ("cold", "primed", "carry")


@dataclass(frozen=True)
class Arm:
    """A backend, agent, variant, model or setting that an A/B session compares with others. All others are compared with the first arm."""

    name: str
    kind: str  # `backend`, `agent`, `variant`, `model`, `set` or `settings`
    # name, YAML or URL of a backend, or NAME[PATH=VALUE]; kind or import path of an agent; variant; model; PATH=VALUE of a setting; JSON
    # of several settings
    value: str

    @property
    def option_text(self) -> str:
        """The arm as text for `--agentbench-ab`, without a name."""
        return self.value if self.kind == BACKEND else f"{self.kind}:{self.value}"

    @property
    def path(self) -> str:
        """The path of the setting that distinguishes the arms, as in `--agentbench-set`. Empty for arms of another kind."""
        if self.kind == MODEL:
            return "agent.model"
        return _whole_path(self.value.partition("=")[0]) if self.kind == SETTING else ""

    @property
    def setting(self) -> Any:
        """The value of the setting at `path`. Raises ConfigError if its text is not valid YAML."""
        from pytest_agentbench.lib.config import parse_yaml

        return self.value if self.kind == MODEL else parse_yaml(self.value.partition("=")[2], self.path)

    @property
    def settings(self) -> Json:
        """The settings that the arm changes: path, as in `--agentbench-set`, -> value. Empty for backends, agents and variants."""
        if self.kind == SETTINGS:
            return {_whole_path(path): value for path, value in json.loads(self.value).items()}
        return {self.path: self.setting} if self.path else {}

    @property
    def concurrency(self) -> int | None:
        """The concurrency of this arm: a number of rollouts at the same time, or None for that of the session."""
        return self.settings.get(CONCURRENCY)

    @property
    def backend(self) -> str:
        """The name, YAML or URL of the backend, for arms of the kind `backend`."""
        changed = CHANGED_BACKEND.fullmatch(self.value)
        return changed[1] if changed else self.value

    @property
    def backend_changes(self) -> tuple[tuple[str, Any], ...]:
        """The change to settings of the backend under test, as (dotted path, value). Empty if the arm does not change the backend."""
        from pytest_agentbench.lib.config import parse_yaml

        if self.kind == BACKEND:
            changed = CHANGED_BACKEND.fullmatch(self.value)
            return ((changed[2], parse_yaml(changed[3], changed[2])),) if changed else ()
        return tuple((path.removeprefix(OF_BACKEND), value) for path, value in self.settings.items() if path.startswith(OF_BACKEND))


class VariantOrigin(NamedTuple):
    """The variant of the suite and the arm from which a new variant of an A/B session was made."""

    variant: str  # name in the suite
    arm: str


def new_salt() -> str:
    """Returns a text for the beginning of prompts, so that no earlier prompt begins like them and none is in the prefix cache."""
    return f"[benchmark run {secrets.token_hex(6)}]"


def concurrencies(arms: Sequence[Arm]) -> dict[str, int]:
    """Returns arm -> the number of its rollouts that run at the same time, for arms that set a concurrency."""
    return {arm.name: arm.concurrency for arm in arms if arm.concurrency is not None}


def share_server(arms: Sequence[Arm]) -> bool:
    """Returns whether several arms are measured on one server, because none of them changes the backend."""
    return bool(arms) and not any(arm.kind == BACKEND or arm.backend_changes for arm in arms)


def variant_in(variant: str, arm: str) -> str:
    """Returns the name of the new variant that combines a variant of the suite with an arm: `VARIANT-ARM`, or `ARM` for the default one."""
    return arm if variant == DEFAULT else f"{variant}-{arm}"


def in_arms(suite: Suite, variants: Sequence[str], arms: Sequence[Arm]) -> tuple[Suite, tuple[str, ...]]:
    """Returns the suite with a new variant for each combination of a chosen variant and an arm, and the names of the new variants.

    If the arms themselves are variants, each of them becomes one new variant.

    Raises ConfigError if the suite already uses the name of a new variant, if a variant is unknown, or if a setting cannot be changed.
    """
    made, sizes, tools, answers = {}, {}, {}, {}
    for name, (variant, arm) in _pairs(variants, arms).items():
        source = arm.value if arm.kind == VARIANT else arm.settings.get(VARIANT, variant)
        if name in suite.variants and name != source:
            raise ConfigError(
                f"{suite.folder / SUITE_FILE}: the suite has a variant {name!r}; give the arm another name, such as a={arm.option_text}"
            )
        if source not in (DEFAULT, *suite.variants):
            unknown = unknown_name("variant", source, (DEFAULT, *suite.variants))
            raise ConfigError(f"{suite.folder / SUITE_FILE}: the arm {arm.option_text}: {unknown}")
        made[name] = _agent(suite, source, arm)
        if own_tools := suite.tools_of(source):
            tools[name] = own_tools
        if own_answers := suite.answers_of(source):
            answers[name] = own_answers
        if source in suite.sizes:
            sizes[name] = suite.sizes[source]
    own = {name: agent for name, agent in made.items() if name != DEFAULT}
    changes: Json = {"variants": {**suite.variants, **own}, "sizes": {**suite.sizes, **sizes}}
    carried_out: Json = {"tools": {**suite.tools, **tools}, "answers": {**suite.answers, **answers}}
    return dataclasses.replace(suite, **changes, **carried_out), tuple(made)


def _agent(suite: Suite, variant: str, arm: Arm) -> Json:
    """Returns the agent settings for the combination of a variant and an arm, as far as they differ from the suite's."""
    from pytest_agentbench.lib.config import override

    if arm.kind == AGENT:
        own = {name: value for name, value in suite.variants.get(variant, {}).items() if name != "kind"}
        if suite.agent_of(variant)["kind"] != arm.value:
            own = in_place_of(own, arm.value)
        return {**own, "kind": arm.value}
    settings = [(path, value) for path, value in arm.settings.items() if path.startswith(OF_AGENT)]
    if not settings:
        return suite.variants.get(variant, {})
    changed: Json = override({"agent": suite.agent_of(variant)}, settings, str(suite.folder / SUITE_FILE))["agent"]
    return changed


def origins(variants: Sequence[str], arms: Sequence[Arm]) -> dict[str, VariantOrigin]:
    """Returns name of a new variant (`variant_in`) -> the variant of the suite and the arm that it combines."""
    return {name: VariantOrigin(variant, arm.name) for name, (variant, arm) in _pairs(variants, arms).items()}


def _pairs(variants: Sequence[str], arms: Sequence[Arm]) -> dict[str, tuple[str, Arm]]:
    """Returns the new variants of an A/B session: name of each -> the variant of the suite and the arm that it combines.

    Arms of the kind `variant` are combined only with the suite's default variant.
    """
    chosen = (DEFAULT,) if any(arm.kind == VARIANT for arm in arms) else variants
    return {variant_in(variant, arm.name): (variant, arm) for variant in chosen for arm in arms}


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
#: Each arm runs all scenarios again, and each comparison widens the intervals of the others.
MOST_ARMS = 12
FORMS = (
    "BACKEND,BACKEND, agent:KIND,agent:KIND, variant:NAME,variant:NAME, model:NAME,model:NAME, set:PATH=VALUE|VALUE "
    'NAME=settings:{"PATH": VALUE},NAME=settings:{} or BACKEND[PATH=VALUE|VALUE]'
)


def parse_arms(text: str) -> tuple[Arm, ...]:
    """Parses `A,B,C`, `NAME=A,NAME=B` or `set:PATH=VALUE|VALUE`. Returns no arms for an empty text.

    Raises ValueError for anything else. Its message is a noun phrase for what would work, to follow "must be".
    """
    if not text.strip():
        return ()
    arms = tuple(arm for entry in _entries(text) for arm in _arms(entry.strip()))
    if not 2 <= len(arms) <= MOST_ARMS or not all(arm.value for arm in arms):
        raise ValueError(f"2 to {MOST_ARMS} arms: {FORMS}, each with NAME= in front if you like")
    if len({(arm.kind, arm.path) for arm in arms}) > 1:
        raise ValueError("arms of one kind that differ in one setting only; otherwise their results cannot be explained")
    if duplicate := _duplicate(arms):
        raise ValueError(f"arms with different names, such as old={duplicate.option_text},new={duplicate.option_text}")
    return arms


def _entries(text: str) -> Iterator[str]:
    """Yields the parts of the option between commas. Commas in brackets, or in the JSON of several settings, belong to an arm."""
    start, end, in_brackets = 0, 0, False
    for index, character in enumerate(text):
        if index < end:
            continue
        if character == "{" and text[start:index].endswith(f"{SETTINGS}:"):
            end = _end_of_json(text, index)
        elif character in "[]":
            in_brackets = character == "["
        elif character == "," and not in_brackets:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _end_of_json(text: str, start: int) -> int:
    """Returns where the JSON that starts at `start` ends. Raises ValueError if it is not valid."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except json.JSONDecodeError as error:
        raise ValueError(f'arms of several settings as settings:{{"PATH": VALUE}}, in valid JSON: {error}') from error


def _arms(entry: str) -> Iterator[Arm]:
    """Yields the arms of one comma-separated entry of the option.

    This is one arm, or one for each value in `set:PATH=VALUE|VALUE` or `BACKEND[PATH=VALUE|VALUE]`.
    """
    name, equals, rest = entry.partition("=")
    if not equals or not NAME.fullmatch(name):
        name, rest = "", entry
    kind, value = next(((kind, rest.removeprefix(f"{kind}:")) for kind in KINDS[1:] if rest.startswith(f"{kind}:")), (BACKEND, rest))
    if kind == SETTING:
        yield from _setting_arms(name, value)
    elif kind == SETTINGS:
        yield _settings_arm(name, value)
    elif kind == BACKEND and (changed := CHANGED_BACKEND.fullmatch(value)):
        yield from _changed_backends(name, *changed.groups())
    else:
        value = LoginUrl(value)
        yield _arm(name or _default_name(kind, value), kind, value)


def _setting_arms(name: str, text: str) -> Iterator[Arm]:
    path, equals, listed = text.partition("=")
    values = [value.strip() for value in listed.split("|")]
    if not equals or not path or not all(values):
        raise ValueError("arms of a setting as set:PATH=VALUE|VALUE, for example set:concurrency=8|16")
    _check_path(path)
    if name and len(values) > 1:
        raise ValueError(f"arms that are named one by one, such as {name}=set:{path}={values[0]}")
    for value in values:
        arm = _arm(name or _value_name(path, LoginUrl(value)), SETTING, f"{path}={value}")
        _check_setting(arm, value)
        yield arm


def _settings_arm(name: str, text: str) -> Arm:
    """Returns the arm that changes several settings. `text` is a JSON object: path -> value."""
    if not name:
        raise ValueError(f"arms of several settings with names of their own, such as a={SETTINGS}:{text}")
    if not text.startswith("{") or _end_of_json(text, 0) != len(text):
        raise ValueError('arms of several settings as settings:{"PATH": VALUE}')
    for path, value in json.loads(text).items():
        if path != VARIANT:
            _check_path(path)
        if path == CONCURRENCY and (type(value) is not int or value < 1):
            raise ValueError(f"arms whose concurrency is a whole number from 1 up, not {value}")
    return _arm(name, SETTINGS, text)


def _check_path(path: str) -> None:
    """Raises ValueError if arms cannot differ in the setting at this path."""
    if path not in (CONCURRENCY, "model") and not path.startswith((OF_BACKEND, OF_AGENT)):
        raise ValueError(f"arms that differ in concurrency, agent.…, model or backend.…, and not in {path}, which all arms share")


def _whole_path(path: str) -> str:
    return "agent.model" if path == "model" else path


def _changed_backends(name: str, backend: str, path: str, listed: str) -> Iterator[Arm]:
    values = [value.strip() for value in listed.split("|")]
    if not all(values):
        raise ValueError(f"arms of a backend as BACKEND[PATH=VALUE|VALUE], for example {backend}[{path}=a|b]")
    if name and len(values) > 1:
        raise ValueError(f"arms that are named one by one, such as {name}={backend}[{path}={values[0]}]")
    for value in values:
        default = f"{_default_name(BACKEND, backend)}_{_value_name(path, value)}"
        arm = _arm(name or default, BACKEND, f"{backend}[{path}={value}]")
        _check_setting(arm, value)
        yield arm


def _arm(name: str, kind: str, value: str) -> Arm:
    if name == DEFAULT and (kind, value) != (VARIANT, DEFAULT):
        raise ValueError("arms with other names than `default`, which is the suite's own variant")
    return Arm(name, kind, value)


def _check_setting(arm: Arm, value: str) -> None:
    if arm.path == CONCURRENCY and (not value.isdecimal() or not int(value)):
        raise ValueError(f"arms whose concurrency is a whole number from 1 up, not {value}")
    try:
        _ = arm.backend_changes if arm.kind == BACKEND else arm.setting
    except ConfigError as error:
        raise ValueError(f"arms whose values are valid YAML: {error}") from error


def _default_name(kind: str, value: str) -> str:
    """Returns the name of an arm for which the user gave none. It can be part of a test id.

    It is the host and port of a URL, the name of a file without its extension, the name of a variant, or the part of an agent after the
    last colon or of a model after the last slash.
    """
    if kind == AGENT:
        return _word(value.rpartition(":")[2])
    if kind == MODEL:
        return _word(value.rpartition("/")[2])
    if value.startswith(("http://", "https://")):
        return _word(urlsplit(value).netloc)
    return _word(PurePath(value).stem if kind == BACKEND else value)


def _value_name(path: str, value: str) -> str:
    """Returns the name of an arm that sets `path` to `value`: a word alone (`round_robin`), any other after the key (`concurrency_8`)."""
    alone = value[0].isalpha() and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", DEFAULT)
    return _word(value if alone else f"{path.rpartition('.')[2]}_{value}")


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", name).lstrip("_.")


def _duplicate(arms: Sequence[Arm]) -> Arm | None:
    """Returns the first arm that has the name of an earlier one, or None.

    Case is ignored, because each arm has a folder, and file systems may ignore case.
    """
    names = [arm.name.lower() for arm in arms]
    return next((arm for place, arm in enumerate(arms) if names.index(arm.name.lower()) < place), None)
