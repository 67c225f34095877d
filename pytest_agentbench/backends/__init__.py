"""The serving stack under test: read from a backend YAML, started, proven ready, stopped."""
