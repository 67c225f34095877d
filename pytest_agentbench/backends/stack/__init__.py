"""Stacks of services on this machine: their YAML, and the daemon that starts, watches and stops them."""
