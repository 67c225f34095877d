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
        └── NoTerminal   code of the suite waits for input, for example in a debugger, in a process without a terminal

NoScore (an AssertionError) is raised in a test that reads a score which the rollout does not have.
├── RolloutFailed      the rollout ended without a result that can be scored, for example as agent_error
└── ScorerFailed       the scorer failed: the test is then an ERROR, not a FAILURE
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


class AgentbenchError(Exception):
    """Base class of the errors that this package raises on purpose. A command that ends with one has its `exit_status`."""

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
    """Backend, network or judge failed, which is not the agent's fault. The pool retries the rollout."""

    status = "infra_error"


class JudgeError(InfraError):
    """A judge's answer cannot be parsed, so the rollout cannot be scored."""


class LimitReached(RolloutError):
    """The agent ran out of turns, tokens, context or time. Its work so far is scored."""

    status = "limit"


class AgentError(RolloutError):
    """The agent failed by its own fault."""

    status = "agent_error"


class NoTerminal(AgentError):
    """Code of a suite starts a debugger or reads stdin in a process without a terminal."""


class NoScore(AssertionError):
    """A test read a score that the rollout does not have."""

    def __init__(self, message: str, score: str) -> None:
        super().__init__(message)
        self.score = score


class RolloutFailed(NoScore):
    """A test read a score of a rollout that ended without a result. Failures with the same reason have the same `cause`."""

    def __init__(self, rollout: str, score: str, status: str, reason: str) -> None:
        """Takes the rollout, the name of the score, and status and reason of the rollout."""
        self.outcome, self.cause = f"{rollout}: {status}", reason
        super().__init__(f"{rollout}: no score {score!r}, because the rollout ended as {status}: {reason}", score)


class ScorerFailed(NoScore):
    """A test read a score whose scorer failed on the rollout. Failures with the same reason have the same `cause`."""

    def __init__(self, rollout: str, score: str, error: str) -> None:
        """Takes the rollout, the name of the score, and the error of its scorer."""
        self.outcome = rollout
        self.cause = f"no score {score!r}, because the scorer failed: {error}"
        super().__init__(f"{rollout}: {self.cause}", score)


for _error in (NoScore, RolloutFailed, ScorerFailed):
    _error.__module__ = "builtins"  # pytest's summaries then show the name alone, and have space for the message.


MOST_LISTED = 40  # known names in a message at most


def unknown_name(what: str, name: str, known: Iterable[object]) -> str:
    """Returns a message about a misspelt name: `no scorer 'tqs' (did you mean 'tsq'?); known: nat_compat, tsq`."""
    names = sorted(map(str, known))
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"no {what} {name!r}{did_you_mean(name, names)}; known: {', '.join(names[:MOST_LISTED]) or 'none'}{more}"


def unknown_key(key: str, known: Iterable[str], owner: str = "") -> str:
    """Returns a message about a misspelt key: `unknown key 'trails' (did you mean 'trials'?); known keys: ...`, in the order of `known`."""
    names = [*known]
    listed = f"known keys{f' of {owner}' if owner else ''}: {', '.join(names) or 'none'}"
    return f"unknown key {key!r}{did_you_mean(key.rpartition('.')[2], names)}; {listed}"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Returns ` (did you mean 'tsq'?)` if a known name, or its part before a dot, resembles a misspelt one; otherwise an empty text."""
    return suggestion(name, {each.partition(".")[0]: each for each in known} | {each: each for each in known})


def suggestion(name: str, meanings: Mapping[str, object]) -> str:
    """Returns ` (did you mean 'X'?)`, where X is the value in `meanings` whose key resembles a misspelt name. Empty if no key does."""
    from difflib import get_close_matches

    close = get_close_matches(name, meanings, n=1)
    return f" (did you mean {str(meanings[close[0]])!r}?)" if close else ""
