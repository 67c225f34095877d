"""Stacks (backends of `kind: stack`): services on this machine that a daemon starts, watches and stops for sessions."""
