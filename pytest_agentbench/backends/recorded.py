"""Backends of `kind: recorded`: answers from the recording of an earlier run. No model is called, and no other machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pytest_agentbench.backends.api import Api
from pytest_agentbench.backends.doctor.check import Check, missing, ok
from pytest_agentbench.backends.own_server import OwnServer
from pytest_agentbench.backends.spec import BackendSpec, SessionTerms, context_length_of
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.json_text import opened, read_json_file
from pytest_agentbench.lib.kept_values import FILE as MESSAGES
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.records.rollout import suite_of

PLAYER = "recording"  # name of the process in a session
FORMAT = "agentbench.recording/1"
PLAYBACK_TIMEOUT = 5.0  # seconds that the server may take to say what it has played

_RUN = "run.json"


def recording_facts(path: Path) -> Json:
    """Returns facts about a recording, which is the directory of a run, or a file of `agentbench cassette trim`.

    The keys are `format`, `run` (id of the run), `command` (how it was made), `model`, `thresholds` (by suite), and those keys of the
    recorded backend that affect requests: `prices`, `roles`, `request_fields`, `context_length`.

    Raises ConfigError if the recording does not exist or cannot be played.
    """
    if path.is_file():
        facts = _first_record(path).get("recording")
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise ConfigError(f"{path} is not a recording of format {FORMAT}; make one with `agentbench cassette trim RUN -o FILE`")
        return facts
    if not path.is_dir():
        raise ConfigError(f"there is no recording {path}; name a run directory, or a file of `agentbench cassette trim`")
    if not (path / MESSAGES).is_file():
        raise ConfigError(f"{path} has no {MESSAGES}, so it cannot be played; record a run with --agentbench-keep=all")
    return _facts_of_run(path, read_json_file(path / _RUN))


def _first_record(file: Path) -> Json:
    with file.open("rb") as lines:
        try:
            record = json_text.loads(opened(lines.readline().removesuffix(b"\n")))
        except ValueError:
            record = {}
    return record if isinstance(record, dict) else {}


def _facts_of_run(path: Path, run: Any) -> Json:
    try:
        backend, suites = run["backend"], run["suites"]
        facts = {
            "format": FORMAT,
            "run": run["id"],
            "command": [] if backend["kind"] == "recorded" else [*run["command"]],  # Playing once more would record nothing new.
            "model": backend["served_model"].partition(" (answered by ")[0],
            "thresholds": {suite_of(group, suite["variant"]): suite["thresholds"] for group, suite in suites.items()},
            "prices": backend.get("prices"),
            "roles": backend.get("roles") or None,
            "request_fields": backend.get("request_fields"),
            "context_length": context_length_of(backend),
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path / _RUN} is not a run that can be played: {error!r}; name another run") from error
    if (keep := run.get("settings", {}).get("keep", "all")) != "all":
        raise ConfigError(f"{path} was made with --agentbench-keep={keep}, so it cannot be played; record a run with --agentbench-keep=all")
    if backend["kind"] == "ab":
        raise ConfigError(f"{path} compares arms, which cannot be played; record a run of each arm")
    return {name: value for name, value in facts.items() if value is not None}


class RecordedSpec(BackendSpec):
    """The YAML keys of `kind: recorded`: answers from the recording of a run."""

    kind: Literal["recorded"] = Field(description="`recorded`: answers from the [recording](recordings.md) of a run.")
    run: str = Field(
        description="The recording: the directory of a run with `messages.jsonl`, or a file of `agentbench cassette trim`. Paths are "
        "relative to the YAML."
    )
    pace: Literal["at_once", "recorded"] = Field(
        default="at_once", description="`at_once` sends each answer at once, `recorded` in the recorded time."
    )

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        """Returns the keys of the YAML, and for missing ones the values of the recorded backend, such as model, thresholds and prices."""
        if not isinstance(data.get("run"), str):
            return data
        path = (file.parent / data["run"]).resolve()
        known = recording_facts(path)
        brought = {name: known[name] for name in known if name in cls.model_fields and name != "run"}
        return {**brought, **data, "run": str(path), "thresholds": {**brought["thresholds"], **data.get("thresholds", {})}}

    def make(self, terms: SessionTerms) -> Recorded:
        del terms  # It needs no GPUs, and always ends with the session.
        return Recorded(self)

    def checks(self, *, reach: bool) -> Iterator[Check]:
        del reach
        try:
            facts = recording_facts(Path(self.run))
        except ConfigError as error:
            yield missing("recording", str(error), "record a run")
        else:
            yield ok("recording", f"{self.run}, of the run {facts['run']}")


class Recorded(OwnServer):
    """A backend that runs the server of a recording."""

    part = PLAYER
    module = "pytest_agentbench.recordings"
    fixed_port = 0

    def __init__(self, spec: RecordedSpec) -> None:
        super().__init__()
        self.spec, self._facts = spec, recording_facts(Path(spec.run))
        self.name, self.thresholds = spec.name, spec.thresholds
        self.note = f"{spec.note}{'; ' * bool(spec.note)}answers of the recorded run {self._facts['run']}; no model was called"
        without = {"thresholds", "nodes"} if spec.roles else {"thresholds", "nodes", "roles"}
        self.description: Json = {**spec.model_dump(exclude=without, exclude_none=True), "run": self._facts["run"], "note": self.note}
        self._served: Endpoint | None = None  # endpoint of the started server

    @property
    def identity(self) -> Json:
        return {"kind": "recorded", "run": self._facts["run"], "model": self.spec.model}

    @property
    def facts(self) -> Json:
        return {"hardware": {"gpus": [], "driver": None}}

    def endpoint(self, url: str) -> Endpoint:
        labels = {"kind": "recording"}
        self._served = Endpoint(url, self.spec.model or "", self.name, labels=labels, plays_roles=True, **self.spec.endpoint_fields)
        return self._served

    def server_settings(self) -> Json:
        command = shlex.join(self._facts["command"])
        return {
            "recording": self.spec.run,
            "run": self._facts["run"],
            "model": self.spec.model,
            "pace": self.spec.pace,
            "command": command,
        }

    def stop(self) -> None:
        if self._served is not None and self.played is None:
            with suppress(BackendError, ValueError):  # The server has died.
                self.played = Api(self._served).get("/playback", PLAYBACK_TIMEOUT).json()
        super().stop()
