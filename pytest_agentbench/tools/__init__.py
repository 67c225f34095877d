"""The tools of agents: where they come from, and how they are called."""
