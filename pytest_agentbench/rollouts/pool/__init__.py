"""The process that runs the rollouts of a session: one asyncio loop, no pytest, nothing that a test can patch."""
