"""Runs rollouts on several machines: node workers make the attempts, and the pool keeps plan, order, retries and records."""
