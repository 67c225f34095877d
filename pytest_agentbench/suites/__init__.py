"""Suites and scenarios: read, checked, hashed."""
