"""Suites and scenarios: reading, checking and hashing."""
