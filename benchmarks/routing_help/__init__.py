"""Compares the Thompson-sampling router with others: `python -m benchmarks.routing_help --table benchmarks/routing-help-results.md`."""
