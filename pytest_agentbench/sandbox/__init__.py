"""Sandboxes: isolated environments in which tasks are carried out and verified, one for each rollout."""
