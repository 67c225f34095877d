"""Runs rollouts (one execution of an agent on a scenario, with its scores). Only this layer combines agents, models, tools and scorers."""
