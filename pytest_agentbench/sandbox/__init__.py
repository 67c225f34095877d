"""Where tasks are carried out: a machine of its own for each rollout."""
