"""Converts a configuration of the NeMo Agent Toolkit to a suite and a backend, and names the keys that cannot be carried over."""
