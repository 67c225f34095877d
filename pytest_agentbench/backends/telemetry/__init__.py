"""Metrics of servers and GPUs during a session: sampling, statistics, and a comparison with the tap."""
