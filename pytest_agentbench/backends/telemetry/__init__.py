"""Metrics of servers and GPUs during a session: sampling them, statistics, and a comparison with the counts of the tap."""
