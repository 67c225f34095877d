"""The process that runs the rollouts of a session. It has one asyncio loop and no pytest, so tests cannot patch anything in it."""
