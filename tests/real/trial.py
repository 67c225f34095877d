"""Runs one trial of Harbor, in an interpreter that has Harbor: `python -m tests.real.trial`, with a TrialConfig as JSON on stdin.

Prints the result as JSON: rewards, the exception, and the agent's own data.
"""

from __future__ import annotations

import asyncio
import json
import sys

from harbor import Trial, TrialConfig


async def main() -> None:
    trial = await Trial.create(TrialConfig.model_validate_json(sys.stdin.read()))
    result = await trial.run()
    agent = result.agent_result
    print(
        json.dumps(
            {
                "rewards": result.verifier_result and result.verifier_result.rewards,
                "exception": result.exception_info and f"{result.exception_info.exception_type}: {result.exception_info.exception_message}",
                "tokens": [agent.n_input_tokens, agent.n_output_tokens] if agent else None,
                "metadata": agent and agent.metadata,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
