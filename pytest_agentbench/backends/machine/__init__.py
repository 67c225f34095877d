"""The resources of this machine: GPUs, ports, environments, weights."""
