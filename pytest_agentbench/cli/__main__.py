"""`python -m pytest_agentbench.cli`: the command `agentbench`, if its script is not on the PATH."""

from __future__ import annotations

import sys

from pytest_agentbench.cli import main

sys.exit(main())
