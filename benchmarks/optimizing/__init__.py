"""The benchmark of `agentbench optimize`: how often simulated studies claim that settings are better."""
