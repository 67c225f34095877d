"""Speed of sessions with node workers: scaling, overhead for each rollout, limits of the pool, and long sessions."""
