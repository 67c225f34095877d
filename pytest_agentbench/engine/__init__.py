"""The embedded engine: an OpenAI-compatible server in a process of its own, `python -m pytest_agentbench.engine`.

A policy decides what it answers; the import paths below keep this module free of heavy imports.
"""

from __future__ import annotations

POLICIES = {
    "careless": "pytest_agentbench.engine.careless:Careless",
    "lexical": "pytest_agentbench.engine.lexical.policy:Lexical",
    "script": "pytest_agentbench.engine.script:Script",
}
