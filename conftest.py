"""Hooks for the whole repository. Suites are in scenarios/, tests of the project in tests/."""

from __future__ import annotations

pytest_plugins = ["pytester"]
