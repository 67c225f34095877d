"""Backends: the LLM servers and serving stacks under test. A YAML file describes each; sessions start, check and stop them."""
