"""The errors of pytest-agentbench, what each of them means for a test, and the exit status of a command that ends with it.

AgentbenchError
├── ConfigError        a file or an option is wrong: one sentence with the file, the fault and a correct value
│   └── MissingData    a suite's data set is not on this machine: a SKIP, or an ERROR if a verdict was requested
├── BackendError       the stack under test did not start, died, or does not answer: includes the end of the log
│   └── MissingError   the machine lacks something the backend needs: a SKIP, or an ERROR if the backend was named by the user
├── ToolError          a tool refuses a call: the model gets the message, and the rollout continues
└── RolloutError       raised inside a rollout; becomes its status, never a score
    ├── InfraError     backend, network, judge: `infra_error`, retried
    │   └── JudgeError   a judge's answer cannot be parsed
    ├── LimitReached   turns, tokens, context or time: `limit`, still scored
    └── AgentError     the agent's own fault: `agent_error`

NoScore (an AssertionError) is raised in a test that reads a score which the rollout does not have.
└── ScorerFailed       the scorer failed: the test is then an ERROR, not a FAILURE
"""

from __future__ import annotations


class AgentbenchError(Exception):
    """Base class of the errors that this package raises on purpose: unless a subclass differs, a correct request could not be done."""

    exit_status = 1


class ConfigError(AgentbenchError):
    """A file or an option is wrong. The message names it and says how to correct it."""

    exit_status = 4  # pytest's exit status for a usage error


class MissingData(ConfigError):
    """A suite's data set is not on this machine. The message says how to get it."""


class BackendError(AgentbenchError):
    """The stack under test did not start, died or does not answer."""


class MissingError(BackendError):
    """The machine lacks something that the backend needs: GPUs, an environment, a key. The message says how to get it."""


class ToolError(AgentbenchError):
    """Raised by a tool of a suite to refuse a call. The model gets the message, and it is recorded."""


class InjectedError(ToolError):
    """A tool error injected by `error_rate` in suite.yaml."""


class RolloutError(AgentbenchError):
    """Raised inside a rollout. `status` becomes the status of the rollout."""

    status = "agent_error"
    answer = ""  # The agent's answer so far, if it is recorded


class InfraError(RolloutError):
    """Backend, network or judge failed, so it is not the agent's fault. The pool retries the rollout."""

    status = "infra_error"


class JudgeError(InfraError):
    """A judge's answer cannot be parsed, so the rollout cannot be scored."""


class LimitReached(RolloutError):
    """The agent ran out of turns, tokens, context or time. Its work so far is scored."""

    status = "limit"


class AgentError(RolloutError):
    """The agent failed by its own fault."""

    status = "agent_error"


class NoScore(AssertionError):
    """A test read a score that the rollout does not have."""


class ScorerFailed(NoScore):
    """A test read a score whose scorer failed on the rollout. Failures with the same reason have the same `cause`."""

    def __init__(self, rollout: str, cause: str) -> None:
        super().__init__(f"{rollout}: {cause}")
        self.outcome, self.cause = rollout, cause


def unknown_name(what: str, name: str, known: object) -> str:
    """Returns the message for a misspelt name: `no scorer 'tqs'; known: nat_compat, tsq`."""
    listed = ", ".join(sorted(str(each) for each in known)) if hasattr(known, "__iter__") else str(known)
    return f"no {what} {name!r}; known: {listed or 'none'}"
