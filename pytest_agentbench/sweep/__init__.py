"""Evaluates a backend at several concurrency levels: measurements, the knee, and the greatest level that is good enough."""
