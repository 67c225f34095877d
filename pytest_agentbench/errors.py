"""The errors of pytest-agentbench, what each of them means for a test, and the exit status of a command that ends with it.

AgentbenchError
├── ConfigError        a file or an option is wrong: one sentence with the file, the fault and what would work
│   └── MissingData    a suite's data set is not on this machine: a SKIP, or an ERROR where a verdict was asked for
├── BackendError       the stack under test did not start, died, or does not answer: carries the log's tail
│   └── MissingError   the machine lacks something the backend needs: a SKIP, or an ERROR where the backend was asked for
├── ToolError          a tool refuses a call: the model is told, and the rollout goes on
└── RolloutError       raised inside a rollout; becomes its status, never a score
    ├── InfraError     backend, network, judge: `infra_error`, tried again
    │   └── JudgeError   a judge answers, but nothing that could be understood
    ├── LimitReached   turns, tokens, context or time: `limit`, still scored
    └── AgentError     the agent's own fault: `agent_error`

NoScore (an AssertionError) is what a test gets when it asks a rollout for a score that was not measured.
└── ScorerFailed       the scorer is why: the test is then an ERROR, not a FAILURE
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


class AgentbenchError(Exception):
    """Any error that this package raises on purpose: what was asked for is right, and could not be done."""

    exit_status = 1


class ConfigError(AgentbenchError):
    """A file or an option is wrong; the message names it and says what would work."""

    exit_status = 4  # pytest's, for a wrong option


class MissingData(ConfigError):
    """A suite's data set is not on this machine. The message says how to get it."""


class BackendError(AgentbenchError):
    """The stack under test did not start, died or does not answer."""


class MissingError(BackendError):
    """The machine lacks something that the backend needs: GPUs, an environment, a key. The message says how to get it."""


class ToolError(AgentbenchError):
    """What a tool of a suite raises to refuse a call: the model is told the text, and it is recorded."""


class InjectedError(ToolError):
    """A tool's error that `error_rate` in suite.yaml asks for."""


class RolloutError(AgentbenchError):
    """Raised inside a rollout; decides its status."""

    status = "agent_error"
    answer = ""  # the agent's answer so far, if it is to be kept


class InfraError(RolloutError):
    """Not the agent's fault: backend, network or judge. The pool tries the rollout again."""

    status = "infra_error"


class JudgeError(InfraError):
    """A judge said nothing that could be understood, so nobody knows how good the work was."""


class LimitReached(RolloutError):
    """The agent ran out of turns, tokens, context or time; what it did so far is scored."""

    status = "limit"


class AgentError(RolloutError):
    """The agent's own fault."""

    status = "agent_error"


class NoScore(AssertionError):
    """A test asked for a score that this rollout does not have."""


class ScorerFailed(NoScore):
    """A test asked for a score whose scorer failed on this rollout. Scorers that fail for one reason have the same `cause`."""

    def __init__(self, rollout: str, cause: str) -> None:
        super().__init__(f"{rollout}: {cause}")
        self.outcome, self.cause = rollout, cause


def unknown_name(what: str, name: str, known: Iterable[object]) -> str:
    """Returns a message about a misspelt name: `no scorer 'tqs' (did you mean 'tsq'?); known: nat_compat, tsq`."""
    names = sorted(map(str, known))
    return f"no {what} {name!r}{did_you_mean(name, names)}; known: {', '.join(names) or 'none'}"


def unknown_key(key: str, known: Iterable[str], owner: str = "") -> str:
    """Returns a message about a misspelt key: `unknown key 'trails' (did you mean 'trials'?); known keys: ...`, in the order of `known`."""
    names = [*known]
    listed = f"known keys{f' of {owner}' if owner else ''}: {', '.join(names) or 'none'}"
    return f"unknown key {key!r}{did_you_mean(key.rpartition('.')[2], names)}; {listed}"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Returns ` (did you mean 'tsq'?)` if a known name, or its part before a dot, resembles a misspelt one; otherwise an empty text."""
    return suggestion(name, {each.partition(".")[0]: each for each in known} | {each: each for each in known})


def suggestion(name: str, meanings: Mapping[str, object]) -> str:
    """Returns ` (did you mean ...?)` with the meaning of the key that resembles a misspelt name; otherwise an empty text."""
    from difflib import get_close_matches

    close = get_close_matches(name, meanings, n=1)
    return f" (did you mean {str(meanings[close[0]])!r}?)" if close else ""
