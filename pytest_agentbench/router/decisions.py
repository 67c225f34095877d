"""The decisions of a router: a worker for each call, what is learnt from its end, and the metrics and the log of both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pytest_agentbench.router.config import WHERE, RuleConfig
from pytest_agentbench.router.decision_log import DecisionLog, LoggedDecision
from pytest_agentbench.router.features import CallHints, WorkerLoad
from pytest_agentbench.router.hints import SentHints, SessionBudgets
from pytest_agentbench.router.router_metrics import RouterMetrics
from pytest_agentbench.router.thompson import Ending, Routed, ThompsonRouter


@dataclass(frozen=True)
class AskedCall:
    """A call that needs a worker."""

    sent: SentHints
    hints: CallHints


@dataclass(frozen=True)
class RoutedCall:
    """A call that is being answered."""

    asked: AskedCall
    routed: Routed
    load: WorkerLoad  # load of its worker at the decision
    began: float  # seconds, time.monotonic()
    at: float  # seconds since 1970


class Decisions:
    """Decides where calls go, and takes their ends.

    `asked` counts a call of its session, once. `choose` can then be used several times for it, if a worker turns out to be gone. Each
    choice needs its `end`. All state is in memory, and ends with the process.
    """

    def __init__(self, config: RuleConfig) -> None:
        """Opens the log of decisions. Raises ConfigError."""
        constants = config.rule()
        self._router = ThompsonRouter(constants, config.seed)
        self._budgets = SessionBudgets(config.total_requests, constants.prefix_ttl)
        self._metrics = RouterMetrics(self._router)
        self._log = DecisionLog(config.decisions, WHERE)

    def asked(self, sent: SentHints, tokens: int) -> AskedCall:
        """Counts a call with a prompt of so many tokens, and returns what is known of it."""
        reuse = self._budgets.count(sent.prefix, sent.total)
        return AskedCall(sent, CallHints(sent.prefix, reuse, sent.osl, sent.iat, tokens))

    def choose(self, asked: AskedCall, loads: Mapping[str, WorkerLoad]) -> RoutedCall | None:
        """Returns the call with one of the workers whose loads are given, which are those that are alive, or None if there are none."""
        if (routed := self._router.choose(asked.hints, loads)) is None:
            return None
        self._metrics.count_decision(asked.hints, routed)
        return RoutedCall(asked, routed, loads[str(routed.worker)], time.monotonic(), time.time())

    def end(self, call: RoutedCall, ending: Ending, tokens: int, status: int | None = None) -> None:
        """Learns from the end of a call, counts it, and logs it. `tokens` is 0 if the number of output tokens is not known."""
        seconds = time.monotonic() - call.began
        reward = self._router.feedback(call.routed.decision, ending, seconds * 1000, tokens)
        sent, hints, routed, load = call.asked.sent, call.asked.hints, call.routed, call.load
        ended = LoggedDecision(
            at=call.at,
            decision=routed.decision,
            worker=str(routed.worker),
            previous=None if routed.previous is None else str(routed.previous),
            prefix=sent.prefix,
            total=sent.total,
            reuse=hints.reuse,
            osl=hints.osl,
            iat=hints.iat,
            prompt_tokens=hints.tokens,
            overlap=routed.overlap,
            gpu=load.gpu,
            queue=load.queue,
            probability=routed.probability,
            scores={str(worker): score for worker, score in routed.scores.items()},
            ending=ending,
            status=status,
            latency=seconds,
            output_tokens=tokens,
            reward=reward,
        )
        self._metrics.count_end(ended)
        self._log.write(ended)

    def forget(self, worker: str) -> None:
        """Forgets what is known of a worker."""
        self._router.forget(worker)

    async def metrics_page(self, _: web.Request) -> web.Response:
        """Returns the page of metrics, as the handler of a web application."""
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def close(self) -> None:
        """Closes the log."""
        self._log.close()
