"""Where an agent's tools come from."""
