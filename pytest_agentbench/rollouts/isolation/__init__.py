"""Runs a suite's own code in separate processes: a template process imports it, and forks a process for each rollout and each score."""
