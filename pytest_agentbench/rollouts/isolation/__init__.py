"""A suite's own code in processes of its own: one that has imported it forks another one for each rollout and each of its scores."""
