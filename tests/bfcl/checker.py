"""bfcl-eval's own checker, in a process of its own: JSON lines of answers come in, its verdicts go out.

The checker imports the registry of all models that the leaderboard has run, and with it PyTorch. It asks the registry one thing: whether
a model's tool names have underscores for dots. Here none has, so that a registry that says so takes its place.
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
        except Exception as error:  # a checker that raises has no verdict
            said = {"valid": None, "why": repr(error)}
        print(json.dumps(said))


if __name__ == "__main__":
    main()
