"""What this machine has: GPUs, ports, environments, weights."""
