"""Metrics, computed from records by pure functions."""
