"""Access of agents, judges and scorers to models."""
