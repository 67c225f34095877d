"""Repo-wide hooks only; suites live in scenarios/, tests of the project in tests/."""

from __future__ import annotations

pytest_plugins = ["pytester"]
