"""Computes metrics, such as TTFT and goodput, from the records of rollouts, by pure functions."""
