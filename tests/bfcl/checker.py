"""Runs bfcl-eval's own checker in a separate process: reads answers as JSON lines, and writes its verdicts.

The checker imports the registry of all models of the leaderboard, and with it PyTorch. It only reads whether tool names of a model have
underscores instead of dots. Here none has, so a small registry that says so replaces it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any


def main() -> None:
    registry: Any = ModuleType("bfcl_eval.constants.model_config")
    registry.MODEL_CONFIG_MAPPING = defaultdict(lambda: SimpleNamespace(underscore_to_dot=False))
    sys.modules[registry.__name__] = registry
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    for line in sys.stdin:
        case = json.loads(line)
        try:
            verdict = ast_checker(case["docs"], case["calls"], case["truth"], Language.PYTHON, case["category"], "any")
            said = {"valid": verdict["valid"], "why": "" if verdict["valid"] else f"{verdict['error_type']}: {verdict['error']}"}
        except Exception as error:  # if the checker raises, there is no verdict
            said = {"valid": None, "why": repr(error)}
        print(json.dumps(said))


if __name__ == "__main__":
    main()
