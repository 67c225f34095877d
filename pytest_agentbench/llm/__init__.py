"""How agents, judges and scorers reach a model."""
