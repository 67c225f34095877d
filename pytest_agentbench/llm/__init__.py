"""Model clients of agents, scorers and judges, and the addresses under which they call models."""
