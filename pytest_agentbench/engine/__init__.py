"""The embedded engine: an OpenAI-compatible server in its own process, `python -m pytest_agentbench.engine`.

A policy decides the answers. POLICIES has import paths instead of classes, to avoid heavy imports in this module.
"""

from __future__ import annotations

POLICIES = {
    "careless": "pytest_agentbench.engine.careless:Careless",
    "lexical": "pytest_agentbench.engine.lexical.policy:Lexical",
    "script": "pytest_agentbench.engine.script:Script",
}
