"""Runs rollouts. This is the only layer that combines agents, models, tools and scorers."""
