"""Dynamo's mocker with the parsers that real workers have by option: `python mocker.py PARSERS ...`, the rest as for dynamo.mocker.

It runs in Dynamo's environment. PARSERS is `tool_calls,reasoning`, for example `hermes,qwen3`.
"""

from __future__ import annotations

import sys
from typing import Any

import dynamo.mocker.main as mocker

build = mocker.build_runtime_config
tool_calls, reasoning = sys.argv.pop(1).split(",")


def with_parsers(engine: Any) -> Any:
    block_size, config = build(engine)
    config.tool_call_parser, config.reasoning_parser = tool_calls, reasoning
    return block_size, config


mocker.build_runtime_config = with_parsers
mocker.main()
