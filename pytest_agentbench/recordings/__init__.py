"""Answers LLM calls from the recording of a run: `python -m pytest_agentbench.recordings`, the server of backends of `kind: recorded`."""
