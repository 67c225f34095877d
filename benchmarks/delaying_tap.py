"""`python -m benchmarks.delaying_tap`: a tap whose kernel delays acknowledgements as usual, for comparison with the real one."""

from __future__ import annotations

import sys

from pytest_agentbench.tap import upstream
from pytest_agentbench.tap.__main__ import main

if __name__ == "__main__":
    vars(upstream)["acknowledge_at_once"] = lambda _: None
    sys.exit(main())
