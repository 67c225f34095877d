"""Proof that an endpoint answers as rollouts will need it to."""
