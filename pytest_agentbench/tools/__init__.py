"""The tools of agents: loading them as suite.yaml says, and executing and recording their calls."""
