"""The groups of commands of `agentbench`, one file each."""
