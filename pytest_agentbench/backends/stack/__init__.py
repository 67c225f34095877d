"""A stack of services on this machine: planned, started, watched, ended."""
