"""`python -m pytest_agentbench.cli`: the command `agentbench`, where no script of that name is on the PATH."""

from __future__ import annotations

import sys

from pytest_agentbench.cli import main

sys.exit(main())
