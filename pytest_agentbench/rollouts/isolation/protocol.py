"""Messages for `isolation: process` and the code check: between processes that run a suite's own code, and the pool or controller.

- The pool sends a `TemplateConfig` to a template process, which answers with `Loaded` or `NotLoaded`. From then on the pool sends `Fork`
  and `Kill`, and the template process sends a `JobEnded` for each process that it has forked.
- Each forked process has its own connection to the pool, over which it gets one job. For an `AgentJob` the process reports what the
  agent does as it happens, and finally sends an `AgentDone`. For a `ScoreJob` it sends `Scored` or `ScoreFailed`. Then the process ends.
- The controller starts the code check with a `CodeCheckConfig`. The process answers with `Declarations` or `NotLoaded`, and ends.

Some of the values come from user code. `wire.pack` converts values that JSON cannot express to strings.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.wire import Messages
from pytest_agentbench.llm.client import ModelFacts
from pytest_agentbench.records import Draft, Json, Rollout, Scale, Score, ToolCall
from pytest_agentbench.suites.suite import PoolSuite, Scenario


@dataclass(frozen=True)
class TemplateConfig:
    """The first message of the pool to a template process, which imports the suite's code and answers with `Loaded` or `NotLoaded`."""

    suite: PoolSuite  # without scenarios
    variant: str
    sizes: Sizes  # size limits of texts
    sys_path: tuple[str, ...]  # `sys.path` of the pool
    log_level: int  # log level of the pool


@dataclass(frozen=True)
class Fork:
    """Tells the template process to fork a process for a job. The socket over which that process talks to the pool is sent along."""

    job: int  # number of the job, unique within this template process


@dataclass(frozen=True)
class Kill:
    """Tells the template process to kill the process of a job, if that still runs, with all processes that the job has started."""

    job: int  # number of the job


ForkCommand = Fork | Kill

#: Format of a command. It has a fixed length, because a descriptor is sent together with certain bytes.
_COMMAND = struct.Struct("!cI")
COMMAND_BYTES = _COMMAND.size
_MARKS: Mapping[type[ForkCommand], bytes] = {Fork: b"+", Kill: b"-"}


def packed_command(command: ForkCommand) -> bytes:
    """Encodes a command as COMMAND_BYTES bytes."""
    return _COMMAND.pack(_MARKS[type(command)], command.job)


def command_in(data: bytes) -> ForkCommand:
    """Decodes a command. Raises ValueError for anything but the result of `packed_command`."""
    for kind, mark in _MARKS.items():
        if len(data) == COMMAND_BYTES and data.startswith(mark):
            return kind(_COMMAND.unpack(data)[1])
    raise ValueError(f"{data!r} is not a Fork or Kill command")


@dataclass(frozen=True)
class Loaded:
    """A template process has imported the suite's code and can fork. The pool sends it jobs from now on."""

    judging: tuple[str, ...]  # scorers that call a model
    settings: Json  # settings of the agent, including defaults


@dataclass(frozen=True)
class NotLoaded:
    """A template process or a code check cannot load the suite's code, and ends. The suite's rollouts or tests get the reason."""

    reason: str  # a sentence; it names the suite.yaml, unless the process could not read its configuration


@dataclass(frozen=True)
class JobEnded:
    """The process of a job has ended, with all processes that the job has started. The pool prints the output."""

    job: int  # number of the job
    how: str  # for example `ended with exit code 3`
    printed: str  # beginning and end of its output


CONFIG: Messages[TemplateConfig] = Messages(TemplateConfig)
LOADED: Messages[Loaded | NotLoaded] = Messages(Loaded | NotLoaded)  # the first message of a template process
ENDED: Messages[JobEnded] = Messages(JobEnded)  # all other messages of a template process


@dataclass(frozen=True)
class ModelAccess:
    """The data from which a forked process makes a client for a model, whose calls go through the tap like those of the pool."""

    base_url: str  # URL of the tap, with the token of the attempt
    model: str  # name of the model in requests
    facts: ModelFacts


@dataclass(frozen=True)
class AgentJob:
    """The first message of the pool to a forked process that runs the suite's agent on a scenario.

    The process sends `CallMade`, `TriesSettled` and `RoleQuestion` as these happen, and finally `AgentDone`.
    """

    scenario: Scenario
    trial: int  # counted from 1
    llm: ModelAccess
    sampling: Json  # sampling parameters of every request


@dataclass(frozen=True)
class ScoreJob:
    """The first message of the pool to a forked process that runs one of the suite's scorers on a rollout.

    The process answers with `Scored` or `ScoreFailed`.
    """

    scorer: str  # name of the score
    scenario: Scenario
    rollout: Rollout
    judge: ModelAccess | None  # None: the scorer calls no model


Job = AgentJob | ScoreJob
JOBS: Messages[Job] = Messages(Job)


@dataclass(frozen=True)
class RoleOpened:
    """The pool's answer to a `RoleQuestion`: the agent gets a client with this access."""

    llm: ModelAccess


@dataclass(frozen=True)
class RoleRefused:
    """The pool's answer to a `RoleQuestion` if the role is not available. The agent gets an InfraError."""

    reason: str


@dataclass(frozen=True)
class StopAgent:
    """The pool stops an agent whose time is over or whose rollout is cancelled. The process sends `AgentDone` with the results so far."""


ToAgent = RoleOpened | RoleRefused | StopAgent
TO_AGENT: Messages[ToAgent] = Messages(ToAgent)


@dataclass(frozen=True)
class CallMade:
    """An agent has begun or finished a tool call. The pool records it at once, in case the agent is killed."""

    place: int  # index among the calls of the rollout, counted from 0
    call: ToolCall


@dataclass(frozen=True)
class TriesSettled:
    """An agent that writes several drafts has chosen one. The pool records these calls and drafts instead of all earlier ones."""

    calls: tuple[ToolCall, ...]
    drafts: tuple[Draft, ...]


@dataclass(frozen=True)
class RoleQuestion:
    """An agent wants to call another model, by its role in the suite. It gets `RoleOpened` or `RoleRefused` before the next question."""

    name: str
    endpoint: Json | None  # endpoint of a judge that the agent has chosen itself; None: the one in the suite


@dataclass(frozen=True)
class AgentDone:
    """The agent has ended or was stopped. The pool adds these results to the rollout. It is the last message of the process."""

    status: str  # one of STATUSES
    reason: str  # why it is not `ok`
    answer: str
    transcript: tuple[Json, ...]  # conversation in the last call of the model
    tool_calls: tuple[ToolCall, ...]
    drafts: tuple[Draft, ...]
    final_state: Json | None  # final state of the tools, if they have a state


@dataclass(frozen=True)
class Scored:
    """A scorer has scored the rollout of its job. It is the last message of the process."""

    score: Score


@dataclass(frozen=True)
class ScoreFailed:
    """A scorer has raised an exception, so there is no score. It is the last message of the process."""

    reason: str  # the complete reason of the missing score: the exception, with its line in the suite's code


@dataclass(frozen=True)
class JobRefused:
    """A forked process cannot read its job, and ends. The attempt or the score fails with the reason."""

    reason: str


FromAgent = CallMade | TriesSettled | RoleQuestion | AgentDone | JobRefused
FROM_AGENT: Messages[FromAgent] = Messages(FromAgent)

FromScorer = Scored | ScoreFailed | JobRefused
FROM_SCORER: Messages[FromScorer] = Messages(FromScorer)


@dataclass(frozen=True)
class CodeCheckConfig:
    """The line on the stdin of the code check, which loads the suite's code for each variant and answers with one line."""

    suite: PoolSuite  # with scenarios only if the suite has tools of its own
    variants: tuple[str, ...]
    sys_path: tuple[str, ...]  # `sys.path` of the controller


@dataclass(frozen=True)
class Declarations:
    """The code check has loaded the suite's code. The controller adds the scales of the scores (direction, range, unit) to the suite."""

    scales: Mapping[str, Scale]  # score -> scale that its scorer declares


FromCodeCheck = Declarations | NotLoaded
FROM_CODE_CHECK: Messages[FromCodeCheck] = Messages(FromCodeCheck)
