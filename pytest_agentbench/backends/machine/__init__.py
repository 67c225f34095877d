"""The resources of this machine that backends use: GPUs, ports, environments and weights."""
