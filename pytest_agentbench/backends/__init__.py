"""Backends: the servers and stacks under test. They are read from a YAML, started, checked and stopped."""
